"""The inputs that every contender of one measurement shares."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from maxk.cbsr import CBSR
from maxk.graph.adjacency import Adjacency
from maxk.graph.graph import Graph
from maxk.measure.traffic import Size


@dataclass(frozen=True)
class Problem:
    """One graph with features and a gradient, on one device.

    Attributes:
        graph: The graph; all contenders get this one, in this node order.
        reduce: ``sum`` or ``mean``.
        x: [N, D] dense features, normally distributed.
        grad: [M, D] gradient of the aggregate, normally distributed.
        features: ``maxk(x, k)`` as a user gets it.
    """

    graph: Graph
    reduce: str
    x: Tensor
    grad: Tensor
    features: CBSR

    @property
    def adjacency(self) -> Adjacency:
        """The matrix with its scales, in the accumulation dtype."""
        double = self.x.dtype == torch.float64
        return self.graph.adjacency(self.reduce, torch.float64 if double else torch.float32)

    @property
    def k(self) -> int:
        """Kept entries per row."""
        return self.features.k

    @property
    def width(self) -> int:
        """D."""
        return self.x.shape[1]

    @property
    def size(self) -> Size:
        """The sizes that traffic is counted from."""
        return Size(
            num_src=self.graph.num_src,
            num_dst=self.graph.num_dst,
            num_edges=self.graph.num_edges,
            width=self.width,
            k=self.k,
            value_bytes=self.x.element_size(),
            weighted=self.graph.edge_weight is not None,
        )


def random_matrix(rows: int, width: int, like: Graph, dtype: torch.dtype) -> Tensor:
    """Returns fresh normal numbers on the graph's device; torch's allocator aligns them.

    A buffer from another allocator makes the CPU's sparse library twice as slow.
    """
    return torch.randn(rows, width, device=like.device, dtype=torch.float32).to(dtype)
