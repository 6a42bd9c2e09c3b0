"""A view read as if its rows were contiguous."""

from __future__ import annotations

import pytest
import torch

import maxk
from adversary.tiny import graph_of, same


def strided(kind: str, device: torch.device) -> torch.Tensor:
    """The rows [1, 4], [2, 5], [3, 6] as a view."""
    want = torch.tensor([[1.0, 4], [2, 5], [3, 6]], device=device)
    if kind == "transposed":
        return want.t().contiguous().t()
    big = torch.full((5, 5), 99.0, device=device)
    views = {"every-other": big[:3, ::2][:, :2], "offset": big[2:, 3:], "rows": big[::2, :2]}
    views[kind].copy_(want)
    return views[kind]


@pytest.mark.parametrize("kind", ["transposed", "every-other", "offset", "rows"])
def test_views_give_what_their_copies_give(implementation, device, kind):
    graph = graph_of([(0, 1), (2, 1)], 3, device=device)
    view = strided(kind, device)
    for k, want in [(None, [4, 10]), (2, [4, 10]), (1, [0, 10])]:
        h = view if k is None else maxk.maxk(view, k, implementation=implementation)
        y = maxk.aggregate(graph, h, "sum", implementation=implementation)
        same(y, [[0, 0], want, [0, 0]])
    # Values and columns of CBSR, and an upstream gradient, may be views as well.
    columns = torch.tensor([[0, 1]], dtype=torch.uint8, device=device).expand(3, 2)
    values = view.detach().requires_grad_()
    y = maxk.aggregate(graph, maxk.CBSR(values, columns, 4), "sum", implementation=implementation)
    same(y, [[0] * 4, [4, 10, 0, 0], [0] * 4])
    y.backward(torch.tensor([[1.0], [2], [3]], device=device).expand(3, 4))
    same(values.grad, [[2, 2], [0, 0], [2, 2]])
