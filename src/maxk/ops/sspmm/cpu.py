"""SSpMM on the CPU, in two variants.

``scatter``: each thread walks a share of the *forward* rows and adds the k sampled gradient entries
into a buffer of its own, [N, k]; the buffers are added at the end. Reads each gradient row once.
``dense``: one thread owns a source, sums its targets' whole gradient rows, and picks the k columns.
Its bits do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from maxk.device.cpu import equal_edges, equal_rows, kernel, prefetch, threads
from maxk.graph.adjacency import Adjacency
from maxk.ops.operands import array, operands
from maxk.ops.spmm.cpu import sum_rows
from maxk.ops.spmm.reference import accumulation_dtype
from maxk.ops.sspmm.plan import plan_cpu


def sspmm(adjacency: Adjacency, weight: Tensor | None, grad: Tensor, columns: Tensor) -> Tensor:
    """du[s, j] = sum over edges s -> t of R[t] w C[s] grad[t, columns[s, j]], [N, k]."""
    count = threads()
    given = operands(adjacency, weight, grad, transposed=True)
    plan = plan_cpu(adjacency.num_src, grad.shape[1], columns.shape[1], count)
    du = torch.empty(columns.shape, dtype=given.features.dtype, device="cpu")
    if plan.variant == "scatter":
        indptr = adjacency.indptr.numpy()
        buffers = torch.empty(count, *columns.shape, dtype=du.dtype, device="cpu")
        _scatter(
            indptr, adjacency.indices.numpy(), given.weight, given.features.numpy(),
            columns.numpy(), buffers.numpy(), equal_edges(indptr, count),
        )  # fmt: skip
        _fold(buffers.numpy(), array(given.row_scale), du.numpy(), equal_rows(du.shape[0]))
    else:
        indptr = adjacency.t_indptr.numpy()
        edges = None if weight is None else adjacency.t_edges.numpy()
        sum_rows(
            indptr, adjacency.t_indices.numpy(), edges, given.weight, array(given.row_scale),
            given.features.numpy(), columns.numpy(), du.numpy(), equal_edges(indptr),
        )  # fmt: skip
    return du.to(grad.dtype)


def pick(dense: Tensor, columns: Tensor) -> Tensor:
    """dense[i, columns[i, j]], [N, k]: the adjoint of MaxK's scatter."""
    threads()
    wide = dense.to(accumulation_dtype(dense.dtype))
    picked = torch.empty(columns.shape, dtype=wide.dtype, device="cpu")
    _pick(wide.numpy(), columns.numpy(), picked.numpy(), equal_rows(columns.shape[0]))
    return picked.to(dense.dtype)


def sddmm(adjacency: Adjacency, values: Tensor, columns: Tensor, grad: Tensor) -> Tensor:
    """dw[e] = R[t] C[s] sum over j of values[s, j] grad[t, columns[s, j]], [E] in CSR order."""
    threads()
    left = operands(adjacency, None, values)
    right = operands(adjacency, None, grad, transposed=True)
    products = torch.empty(adjacency.num_edges, dtype=left.features.dtype, device="cpu")
    indptr = adjacency.indptr.numpy()
    _dots(
        indptr, adjacency.indices.numpy(), left.features.numpy(), columns.numpy(),
        right.features.numpy(), products.numpy(), equal_edges(indptr),
    )  # fmt: skip
    return products


@kernel
def _pick(dense: Any, columns: Any, picked: Any, pieces: Any) -> None:
    k = np.uint64(columns.shape[1])
    for piece in prange(pieces.shape[0] - 1):
        for i in range(pieces[piece], pieces[piece + 1]):
            for j in range(k):
                picked[i, j] = dense[i, columns[i, j]]


@kernel
def _scatter(
    indptr: Any, indices: Any, weight: Any, grad: Any, columns: Any, buffers: Any, pieces: Any
) -> None:
    k = np.int64(columns.shape[1])
    per_line = 64 // grad.itemsize
    lines = (k + per_line - 1) // per_line
    one = grad.dtype.type(1)
    for piece in prange(pieces.shape[0] - 1):
        own = buffers[piece]
        own[:] = 0
        for i in range(pieces[piece], pieces[piece + 1]):
            row = grad[i]
            last = np.int64(indptr[i + 1])
            for e in range(np.int64(indptr[i]), last):
                if e + 8 < last:
                    start = np.int64(indices[e + 8]) * k
                    for z in range(lines):
                        prefetch(own, start + z * per_line)
                    prefetch(columns, start)
                s = np.uint64(indices[e])
                w = one
                if weight is not None:
                    w = weight[e]
                for j in range(np.uint64(k)):
                    own[s, j] += w * row[columns[s, j]]


@kernel
def _fold(buffers: Any, row_scale: Any, du: Any, pieces: Any) -> None:
    k = du.shape[1]
    one = du.dtype.type(1)
    for piece in prange(pieces.shape[0] - 1):
        for s in range(pieces[piece], pieces[piece + 1]):
            scale = one
            if row_scale is not None:
                scale = row_scale[s]
            for j in range(k):
                total = buffers[0, s, j]
                for thread in range(1, buffers.shape[0]):
                    total += buffers[thread, s, j]
                du[s, j] = scale * total


@kernel
def _dots(
    indptr: Any, indices: Any, values: Any, columns: Any, grad: Any, products: Any, pieces: Any
) -> None:
    k = np.uint64(values.shape[1])
    for piece in prange(pieces.shape[0] - 1):
        for i in range(pieces[piece], pieces[piece + 1]):
            for e in range(np.int64(indptr[i]), np.int64(indptr[i + 1])):
                s = np.uint64(indices[e])
                total = values.dtype.type(0)
                for j in range(k):
                    total += values[s, j] * grad[i, columns[s, j]]
                products[e] = total
