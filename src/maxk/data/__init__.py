"""From a name or path to graph, features, labels and split."""
