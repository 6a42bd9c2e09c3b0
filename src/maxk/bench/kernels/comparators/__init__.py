"""Whom we compare with, written plainly: one file each, one :class:`Comparator` each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from maxk.bench.kernels.problem import Problem

#: Returns [M, D], [N, D] or [N, k] for the aggregations, values and columns for the selection.
Call = Callable[[], object]


@dataclass(frozen=True)
class Comparator:
    """Another way to the same result.

    Attributes:
        name: As rows call it.
        ops: The operations that it has: ``forward``, ``backward``, ``maxk``.
        prepare: (problem, op) -> the call to time. What a user would cache is made here, what a
            user would pay every step in the call.
        absent: (problem, op) -> why it cannot run here, or None.
        operand: What its forward aggregates: dense ``x``, or ``relu(x)``.
        depends_on_k: False where one measurement at the first k says everything.
    """

    name: str
    ops: tuple[str, ...]
    prepare: Callable[[Problem, str], Call]
    absent: Callable[[Problem, str], str | None]
    operand: Literal["x", "relu"] = "x"
    depends_on_k: bool = True


def comparators() -> tuple[Comparator, ...]:
    """Returns all comparators, the strongest public baseline first."""
    from maxk.bench.kernels.comparators import (
        best_dense,
        merge_path,
        neighbor_groups,
        relu_spgemm,
        torch_sparse,
        torch_topk,
    )

    modules = (torch_sparse, best_dense, neighbor_groups, merge_path, relu_spgemm, torch_topk)
    return tuple(module.COMPARATOR for module in modules)
