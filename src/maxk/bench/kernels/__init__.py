"""Kernels against what a user would run instead."""
