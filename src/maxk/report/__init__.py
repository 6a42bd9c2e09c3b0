"""Rows -> words and pictures."""
