"""The four operations, each a folder of the same files, and what chooses implementations."""
