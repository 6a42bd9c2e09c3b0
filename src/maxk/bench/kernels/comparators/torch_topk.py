"""``torch.topk``, the selection alone: what the published training recipe calls in every layer."""

from __future__ import annotations

import torch

from maxk.bench.kernels.comparators import Call, Comparator
from maxk.bench.kernels.problem import Problem


def prepare(problem: Problem, op: str) -> Call:
    """Returns the k largest values and their 64-bit columns, unsorted."""
    del op
    x, k = problem.x, problem.k
    return lambda: tuple(torch.topk(x, k, dim=1, sorted=False))


def absent(problem: Problem, op: str) -> str | None:
    """Runs everywhere."""
    del problem, op
    return None


COMPARATOR = Comparator("torch.topk", ("maxk",), prepare, absent)
