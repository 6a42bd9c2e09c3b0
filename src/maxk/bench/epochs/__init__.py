"""Whole training epochs: against other libraries, and what MaxK brings on one graph."""
