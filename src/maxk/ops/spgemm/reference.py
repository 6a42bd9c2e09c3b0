"""SpGEMM in plain PyTorch: SpMM of the dense form of the CBSR features."""

from __future__ import annotations

from torch import Tensor

from maxk.graph.adjacency import Adjacency
from maxk.ops.maxk.reference import scatter
from maxk.ops.spmm.reference import spmm


def spgemm(
    adjacency: Adjacency, weight: Tensor | None, values: Tensor, columns: Tensor, width: int
) -> Tensor:
    """y[t, columns[s, j]] += R[t] w C[s] values[s, j] over edges s -> t and j < k, [M, D]."""
    return spmm(adjacency, weight, scatter(values, columns, width))
