"""This package's own dense aggregation: the path the plan falls back to, and ReLU's best.

``auto`` must never lose against it at any k.
"""

from __future__ import annotations

from maxk.bench.kernels.comparators import Call, Comparator
from maxk.bench.kernels.problem import Problem


def prepare(problem: Problem, op: str) -> Call:
    """Returns our SpMM, or its adjoint."""
    from maxk.bench.kernels.ours import dense_backward, dense_forward

    return dense_forward(problem) if op == "forward" else dense_backward(problem)


def absent(problem: Problem, op: str) -> str | None:
    """Runs everywhere."""
    del problem, op
    return None


COMPARATOR = Comparator("best-dense", ("forward", "backward"), prepare, absent)
