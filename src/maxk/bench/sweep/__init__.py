"""Accuracy over k: which runs there are, their training, their speed, what may be said of them."""
