"""How this package times, weighs and records: the rules that every number obeys."""
