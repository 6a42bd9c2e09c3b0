"""SpMM in plain PyTorch: the definition, one message an edge."""

from __future__ import annotations

import torch
from torch import Tensor

from maxk.graph.adjacency import Adjacency


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 sums in itself, everything else in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def edge_messages(weight: Tensor | None, rows: Tensor, scale: Tensor | None, ids: Tensor) -> Tensor:
    """scale[id] * w[e] * rows[id] of every edge, [E, D] in CSR order."""
    scaled = rows if scale is None else rows * scale.to(rows.dtype)[:, None]
    messages = scaled[ids]
    return messages if weight is None else messages * weight.to(rows.dtype)[:, None]


def sum_messages(messages: Tensor, ids: Tensor, count: int, scale: Tensor | None) -> Tensor:
    """scale[i] times the sum of the messages that go to i, [count, D]."""
    total = messages.new_zeros(count, messages.shape[1]).index_add_(0, ids, messages)
    return total if scale is None else total * scale.to(total.dtype)[:, None]


def spmm(adjacency: Adjacency, weight: Tensor | None, x: Tensor) -> Tensor:
    """y[t] = R[t] * sum over edges s -> t of w C[s] x[s], [M, D]."""
    a, sources, targets = adjacency, adjacency.indices.long(), adjacency.csr.rows().long()
    wide = x.to(accumulation_dtype(x.dtype))
    messages = edge_messages(weight, wide, a.column_scale, sources)
    return sum_messages(messages, targets, a.num_dst, a.row_scale).to(x.dtype)


def spmm_t(adjacency: Adjacency, weight: Tensor | None, grad: Tensor) -> Tensor:
    """The adjoint: dx[s] = C[s] * sum over edges s -> t of w R[t] grad[t], [N, D]."""
    a, sources, targets = adjacency, adjacency.indices.long(), adjacency.csr.rows().long()
    wide = grad.to(accumulation_dtype(grad.dtype))
    messages = edge_messages(weight, wide, a.row_scale, targets)
    return sum_messages(messages, sources, a.num_src, a.column_scale).to(grad.dtype)


def sddmm_dense(adjacency: Adjacency, x: Tensor, grad: Tensor) -> Tensor:
    """dw[e] = R[t] C[s] <x[s], grad[t]>, [E] in CSR order and accumulation dtype."""
    a, sources, targets = adjacency, adjacency.indices.long(), adjacency.csr.rows().long()
    dtype = accumulation_dtype(x.dtype)
    left = edge_messages(None, x.to(dtype), a.column_scale, sources)
    right = edge_messages(None, grad.to(dtype), a.row_scale, targets)
    return (left * right).sum(1)
