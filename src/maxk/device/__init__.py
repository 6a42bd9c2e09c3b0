"""How code reaches a machine."""
