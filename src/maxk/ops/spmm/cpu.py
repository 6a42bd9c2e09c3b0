"""SpMM on the CPU: one thread owns a row and adds four neighbours a step, the next four prefetched.

Twice to four times as fast as ``torch.sparse.mm`` on the CPU, so that the ReLU baseline is a fair
one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from maxk.device.cpu import equal_edges, kernel, prefetch, threads
from maxk.graph.adjacency import Adjacency
from maxk.ops.operands import array, operands


def spmm(adjacency: Adjacency, weight: Tensor | None, x: Tensor) -> Tensor:
    """y[t] = sum over edges s -> t of R[t] w C[s] x[s], [M, D]."""
    threads()
    given = operands(adjacency, weight, x)
    y = torch.empty(adjacency.num_dst, x.shape[1], dtype=given.features.dtype, device="cpu")
    indptr = adjacency.indptr.numpy()
    sum_rows(
        indptr, adjacency.indices.numpy(), None, given.weight, array(given.row_scale),
        given.features.numpy(), None, y.numpy(), equal_edges(indptr),
    )  # fmt: skip
    return y.to(x.dtype)


def spmm_t(adjacency: Adjacency, weight: Tensor | None, grad: Tensor) -> Tensor:
    """The adjoint: dx[s] = sum over edges s -> t of R[t] w C[s] grad[t], [N, D]."""
    threads()
    given = operands(adjacency, weight, grad, transposed=True)
    dx = torch.empty(adjacency.num_src, grad.shape[1], dtype=given.features.dtype, device="cpu")
    indptr = adjacency.t_indptr.numpy()
    edges = None if weight is None else adjacency.t_edges.numpy()
    sum_rows(
        indptr, adjacency.t_indices.numpy(), edges, given.weight, array(given.row_scale),
        given.features.numpy(), None, dx.numpy(), equal_edges(indptr),
    )  # fmt: skip
    return dx.to(grad.dtype)


def sddmm_dense(adjacency: Adjacency, x: Tensor, grad: Tensor) -> Tensor:
    """dw[e] = R[t] C[s] <x[s], grad[t]>, [E] in CSR order and accumulation dtype."""
    threads()
    left = operands(adjacency, None, x)
    right = operands(adjacency, None, grad, transposed=True)
    products = torch.empty(adjacency.num_edges, dtype=left.features.dtype, device="cpu")
    indptr = adjacency.indptr.numpy()
    _dots(
        indptr, adjacency.indices.numpy(), left.features.numpy(), right.features.numpy(),
        products.numpy(), equal_edges(indptr),
    )  # fmt: skip
    return products


@kernel
def sum_rows(
    indptr: Any, indices: Any, edges: Any, weight: Any, row_scale: Any, x: Any, columns: Any,
    y: Any, pieces: Any,
) -> None:  # fmt: skip
    """Sums rows of x over the edges of each row; stores it whole, or only at its k columns."""
    width = np.int64(x.shape[1])
    per_line = 64 // x.itemsize
    # The rest of a long row comes by the hardware's own prefetcher.
    lines = min(np.int64(4), (width + per_line - 1) // per_line)
    one = x.dtype.type(1)
    for piece in prange(pieces.shape[0] - 1):
        total = np.zeros(width, x.dtype)
        for i in range(pieces[piece], pieces[piece + 1]):
            for c in range(width):
                total[c] = 0
            first = np.int64(indptr[i])
            last = np.int64(indptr[i + 1])
            whole = first + ((last - first) & ~np.int64(3))
            for e in range(first, whole, 4):
                if e + 8 <= last:
                    for q in range(4):
                        start = np.int64(indices[e + 4 + q]) * width
                        for z in range(lines):
                            prefetch(x, start + z * per_line)
                s0 = np.uint64(indices[e])
                s1 = np.uint64(indices[e + 1])
                s2 = np.uint64(indices[e + 2])
                s3 = np.uint64(indices[e + 3])
                w0 = one
                w1 = one
                w2 = one
                w3 = one
                if weight is not None:
                    if edges is not None:
                        w0 = weight[edges[e]]
                        w1 = weight[edges[e + 1]]
                        w2 = weight[edges[e + 2]]
                        w3 = weight[edges[e + 3]]
                    else:
                        w0 = weight[e]
                        w1 = weight[e + 1]
                        w2 = weight[e + 2]
                        w3 = weight[e + 3]
                for c in range(np.uint64(width)):
                    total[c] += (w0 * x[s0, c] + w1 * x[s1, c]) + (w2 * x[s2, c] + w3 * x[s3, c])
            for e in range(whole, last):
                s0 = np.uint64(indices[e])
                w0 = one
                if weight is not None:
                    w0 = weight[edges[e]] if edges is not None else weight[e]
                for c in range(np.uint64(width)):
                    total[c] += w0 * x[s0, c]
            scale = one
            if row_scale is not None:
                scale = row_scale[i]
            if columns is None:
                for c in range(width):
                    y[i, c] = scale * total[c]
            else:
                for j in range(columns.shape[1]):
                    y[i, j] = scale * total[columns[i, j]]


@kernel
def _dots(indptr: Any, indices: Any, x: Any, grad: Any, products: Any, pieces: Any) -> None:
    width = np.uint64(x.shape[1])
    for piece in prange(pieces.shape[0] - 1):
        for i in range(pieces[piece], pieces[piece + 1]):
            for e in range(np.int64(indptr[i]), np.int64(indptr[i + 1])):
                s = np.uint64(indices[e])
                total = x.dtype.type(0)
                for c in range(width):
                    total += x[s, c] * grad[i, c]
                products[e] = total
