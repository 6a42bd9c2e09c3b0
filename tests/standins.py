"""Objects with the methods of libraries that do not install everywhere."""

from __future__ import annotations

import torch


class StandInDGLGraph:
    """The methods of a ``DGLGraph`` that are called."""

    def __init__(self, edges, counts, **edata):
        self.canonical_etypes = [("_N", "_E", "_N")]
        self.edges_, self.counts, self.edata = edges, counts, edata

    def num_src_nodes(self):
        return self.counts[0]

    def num_dst_nodes(self):
        return self.counts[1]

    def num_edges(self):
        return self.edges_.shape[1]

    def adj_tensors(self, fmt):
        by, other = (1, 0) if fmt == "csc" else (0, 1)
        order = torch.argsort(self.edges_[by], stable=True)
        size = self.counts[by]
        indptr = torch.zeros(size + 1, dtype=torch.int64)
        indptr[1:] = torch.bincount(self.edges_[by], minlength=size).cumsum(0)
        # DGL leaves ids out where they count up.
        ids = order if not torch.equal(order, order.sort().values) else order[:0]
        return indptr, self.edges_[other][order], ids
