"""SpMM in plain PyTorch: the definition, one message an edge."""

from __future__ import annotations

import torch
from torch import Tensor

from maxk.graph.adjacency import Adjacency


def coefficients(adjacency: Adjacency, weight: Tensor | None, dtype: torch.dtype) -> Tensor:
    """R[t] * w[e] * C[s] of every edge, [E] in CSR order."""
    value = torch.ones(adjacency.num_edges, dtype=dtype, device=adjacency.device)
    if weight is not None:
        value = value * weight.to(dtype)
    if adjacency.row_scale is not None:
        value = value * adjacency.row_scale.to(dtype)[adjacency.csr.rows().long()]
    if adjacency.column_scale is not None:
        value = value * adjacency.column_scale.to(dtype)[adjacency.indices.long()]
    return value


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 sums in itself, everything else in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def spmm(adjacency: Adjacency, weight: Tensor | None, x: Tensor) -> Tensor:
    """y[t] = sum over edges s -> t of R[t] w C[s] x[s], [M, D]."""
    dtype = accumulation_dtype(x.dtype)
    messages = (
        coefficients(adjacency, weight, dtype)[:, None] * x.to(dtype)[adjacency.indices.long()]
    )
    y = torch.zeros(adjacency.num_dst, x.shape[1], dtype=dtype, device=x.device)
    return y.index_add_(0, adjacency.csr.rows().long(), messages).to(x.dtype)


def spmm_t(adjacency: Adjacency, weight: Tensor | None, grad: Tensor) -> Tensor:
    """The adjoint: dx[s] = sum over edges s -> t of R[t] w C[s] grad[t], [N, D]."""
    dtype = accumulation_dtype(grad.dtype)
    rows = adjacency.csr.rows().long()
    messages = coefficients(adjacency, weight, dtype)[:, None] * grad.to(dtype)[rows]
    dx = torch.zeros(adjacency.num_src, grad.shape[1], dtype=dtype, device=grad.device)
    return dx.index_add_(0, adjacency.indices.long(), messages).to(grad.dtype)


def sddmm_dense(adjacency: Adjacency, x: Tensor, grad: Tensor) -> Tensor:
    """dw[e] = R[t] C[s] <x[s], grad[t]>, [E] in CSR order and accumulation dtype."""
    dtype = accumulation_dtype(x.dtype)
    rows = adjacency.csr.rows().long()
    products = (x.to(dtype)[adjacency.indices.long()] * grad.to(dtype)[rows]).sum(1)
    return products * coefficients(adjacency, None, dtype)
