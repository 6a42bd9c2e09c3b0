"""What the hand-written comparators on a GPU share: arrays of one direction, and what they lack."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from maxk.bench.kernels.problem import Problem

#: Registers of a lane hold one sum for each 32 columns.
WIDEST = 1024


@dataclass(frozen=True)
class Direction:
    """One product, forward or transposed, as plain arrays.

    Attributes:
        indptr: int64 [rows + 1].
        indices: int32 [E].
        target_scale: float32 [rows] or None.
        source_scale: float32 [columns] or None.
        dense: float32 [columns, D], what is aggregated.
    """

    indptr: Tensor
    indices: Tensor
    target_scale: Tensor | None
    source_scale: Tensor | None
    dense: Tensor

    @property
    def rows(self) -> int:
        """Rows of the result."""
        return self.indptr.shape[0] - 1


def direction(problem: Problem, op: str) -> Direction:
    """Returns the arrays of ``A x``, or of ``Aᵀ grad``."""
    a = problem.adjacency
    if op == "forward":
        return Direction(a.indptr, a.indices, a.row_scale, a.column_scale, problem.x)
    return Direction(a.t_indptr, a.t_indices, a.column_scale, a.row_scale, problem.grad)


def absent(problem: Problem, op: str) -> str | None:
    """Says why a float32 CUDA kernel without edge weights cannot run."""
    del op
    if problem.x.device.type != "cuda":
        return "it is a CUDA kernel"
    if problem.x.dtype != torch.float32:
        return f"it is written for float32, not {problem.x.dtype}"
    if problem.graph.edge_weight is not None:
        return "it has no edge weights"
    if problem.adjacency.indices.dtype != torch.int32:
        return "it has 32-bit node ids"
    if problem.width > WIDEST:
        return f"it is written for widths up to {WIDEST}"
    return None
