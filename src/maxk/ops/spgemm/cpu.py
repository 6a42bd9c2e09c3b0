"""SpGEMM on the CPU: one thread owns a row and adds its neighbours' entries to two accumulators.

Consecutive edges often hit the same column, and a store followed at once by a load of the same
address stalls; edges in pairs, each with an accumulator of its own, avoid that. The rows to come
are prefetched, since neighbours lie anywhere in memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from maxk.device.cpu import equal_edges, kernel, prefetch, threads
from maxk.graph.adjacency import Adjacency
from maxk.ops.maxk.cpu import scatter
from maxk.ops.operands import Operands, array, operands
from maxk.ops.spgemm.plan import plan_cpu
from maxk.ops.spmm import cpu as dense


def spgemm(
    adjacency: Adjacency, weight: Tensor | None, values: Tensor, columns: Tensor, width: int
) -> Tensor:
    """y[t, columns[s, j]] += R[t] w C[s] values[s, j] over edges s -> t and j < k, [M, D]."""
    plan = plan_cpu(width, values.shape[1])
    if plan.variant == "dense":
        return dense.spmm(adjacency, weight, scatter(values, columns, width))
    threads()
    given: Operands = operands(adjacency, weight, values)
    y = torch.empty(adjacency.num_dst, width, dtype=given.features.dtype, device="cpu")
    indptr = adjacency.indptr.numpy()
    _rows(
        indptr, adjacency.indices.numpy(), given.weight, array(given.row_scale),
        given.features.numpy(), columns.numpy(), y.numpy(), equal_edges(indptr),
    )  # fmt: skip
    return y.to(values.dtype)


@kernel
def _rows(
    indptr: Any, indices: Any, weight: Any, row_scale: Any, values: Any, columns: Any, y: Any,
    pieces: Any,
) -> None:  # fmt: skip
    width = y.shape[1]
    k = np.int64(values.shape[1])
    per_line = 64 // values.itemsize
    lines = (k + per_line - 1) // per_line
    column_lines = (k * columns.itemsize + 63) // 64
    per_column_line = 64 // columns.itemsize
    one = values.dtype.type(1)
    for piece in prange(pieces.shape[0] - 1):
        even = np.zeros(width, values.dtype)
        odd = np.zeros(width, values.dtype)
        for i in range(pieces[piece], pieces[piece + 1]):
            for c in range(width):
                even[c] = 0
                odd[c] = 0
            first = np.int64(indptr[i])
            last = np.int64(indptr[i + 1])
            paired = first + ((last - first) & ~np.int64(1))
            for e in range(first, paired, 2):
                if e + 9 < last:
                    for q in range(2):
                        start = np.int64(indices[e + 8 + q]) * k
                        for z in range(lines):
                            prefetch(values, start + z * per_line)
                        for z in range(column_lines):
                            prefetch(columns, start + z * per_column_line)
                s0 = np.uint64(indices[e])
                s1 = np.uint64(indices[e + 1])
                w0 = one
                w1 = one
                if weight is not None:
                    w0 = weight[e]
                    w1 = weight[e + 1]
                for j in range(np.uint64(k)):
                    even[columns[s0, j]] += w0 * values[s0, j]
                    odd[columns[s1, j]] += w1 * values[s1, j]
            if paired < last:
                s0 = np.uint64(indices[paired])
                w0 = one
                if weight is not None:
                    w0 = weight[paired]
                for j in range(np.uint64(k)):
                    even[columns[s0, j]] += w0 * values[s0, j]
            scale = one
            if row_scale is not None:
                scale = row_scale[i]
            for c in range(width):
                y[i, c] = scale * (even[c] + odd[c])
