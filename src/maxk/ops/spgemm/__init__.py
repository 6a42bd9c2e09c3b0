"""SpGEMM: a graph times CBSR features, forward aggregation by rows."""
