"""SpMM: a graph times dense features, what ReLU layers need and every table compares with."""
