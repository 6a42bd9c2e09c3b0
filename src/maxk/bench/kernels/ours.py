"""The operations under test, called as a user calls them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from maxk.bench.kernels.problem import Problem
from maxk.cbsr import CBSR
from maxk.ops.aggregate import aggregate
from maxk.ops.maxk.op import maxk

#: What rows call the implementation that the library chooses by itself.
AUTO = "auto"


def _named(implementation: str) -> str | None:
    return None if implementation == AUTO else implementation


def selection(x: Tensor, k: int, implementation: str = AUTO) -> Callable[[], CBSR]:
    """Returns the call of MaxK."""
    name = _named(implementation)

    def call() -> CBSR:
        with torch.no_grad():
            return maxk(x, k, implementation=name)

    return call


def forward(problem: Problem, implementation: str = AUTO) -> Callable[[], Tensor]:
    """Returns the call that aggregates CBSR features."""
    return _aggregate(problem, problem.features, implementation)


def backward(problem: Problem, implementation: str = AUTO) -> Callable[[], Tensor]:
    """Returns the call that takes the gradient of the kept values, [N, k]."""
    values = problem.features.values.detach().requires_grad_()
    return _gradient(problem, problem.features.with_values(values), values, implementation)


def dense_forward(problem: Problem) -> Callable[[], Tensor]:
    """Returns the call that aggregates the dense features."""
    return _aggregate(problem, problem.x, AUTO)


def dense_backward(problem: Problem) -> Callable[[], Tensor]:
    """Returns the call that takes the gradient of the dense features, [N, D]."""
    x = problem.x.detach().requires_grad_()
    return _gradient(problem, x, x, AUTO)


def _aggregate(
    problem: Problem, features: Tensor | CBSR, implementation: str
) -> Callable[[], Tensor]:
    name = _named(implementation)

    def call() -> Tensor:
        with torch.no_grad():
            return aggregate(problem.graph, features, reduce=problem.reduce, implementation=name)

    return call


def _gradient(
    problem: Problem, features: Tensor | CBSR, leaf: Tensor, implementation: str
) -> Callable[[], Tensor]:
    """The forward runs once, here; the call walks its graph back again and again."""
    y = aggregate(
        problem.graph, features, reduce=problem.reduce, implementation=_named(implementation)
    )
    return lambda: torch.autograd.grad(y, leaf, problem.grad, retain_graph=True)[0]
