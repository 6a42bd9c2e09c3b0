"""SSpMM in plain PyTorch: the transposed SpMM, sampled at the stored columns."""

from __future__ import annotations

from torch import Tensor

from maxk.graph.adjacency import Adjacency
from maxk.ops.maxk.reference import scatter
from maxk.ops.spmm.reference import sddmm_dense, spmm_t


def sspmm(adjacency: Adjacency, weight: Tensor | None, grad: Tensor, columns: Tensor) -> Tensor:
    """du[s, j] = sum over edges s -> t of R[t] w C[s] grad[t, columns[s, j]], [N, k]."""
    return pick(spmm_t(adjacency, weight, grad), columns)


def pick(dense: Tensor, columns: Tensor) -> Tensor:
    """dense[i, columns[i, j]], [N, k]: the adjoint of MaxK's scatter."""
    return dense.gather(1, columns.long())


def sddmm(adjacency: Adjacency, values: Tensor, columns: Tensor, grad: Tensor) -> Tensor:
    """dw[e] = R[t] C[s] sum over j of values[s, j] grad[t, columns[s, j]], [E] in CSR order."""
    return sddmm_dense(adjacency, scatter(values, columns, grad.shape[1]), grad)
