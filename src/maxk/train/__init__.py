"""A model becomes a trained model: configuration, loop, metrics, checkpoints, run folders."""
