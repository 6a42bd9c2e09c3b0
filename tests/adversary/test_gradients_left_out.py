"""Gradients of edge weights and second derivatives that came back empty or zero."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maxk
from adversary.tiny import dtypes, every_format, graph_of, leaf, same


@pytest.mark.parametrize("k", [1, 2, None])
@dtypes
def test_edge_weights_get_their_gradient(implementation, device, dtype, k):
    weight = leaf([0.5, 2], device, dtype)
    graph = graph_of([(0, 2), (1, 2)], 3, weight, device)
    x = leaf([[3, 1], [2, 4], [0, 0]], device, dtype)
    h = x if k is None else maxk.maxk(x, k, implementation=implementation)
    y = maxk.aggregate(graph, h, "sum", implementation=implementation)
    y.sum().backward()
    if k == 1:
        same(y, [[0, 0], [0, 0], [1.5, 8]])
        same(weight.grad, [3, 4])
        same(x.grad, [[0.5, 0], [0, 2], [0, 0]])
    else:
        same(y, [[0, 0], [0, 0], [5.5, 8.5]])
        same(weight.grad, [4, 6])
        same(x.grad, [[0.5, 0.5], [2, 2], [0, 0]])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_edge_weights_get_their_gradient_under_autocast(implementation, device, dtype):
    weight, x = leaf([0.5, 2], device), leaf([[3, 1], [2, 4], [0, 0]], device)
    graph = graph_of([(0, 2), (1, 2)], 3, weight, device)
    with torch.autocast(device.type, dtype=dtype):
        # What a linear layer makes of float32 features under autocast.
        low = torch.nn.functional.linear(x, torch.eye(2, device=device))
        assert low.dtype == dtype
        h = maxk.maxk(low, 1, implementation=implementation)
        y = maxk.aggregate(graph, h, "sum", implementation=implementation)
    y.float().sum().backward()
    assert weight.grad.dtype == torch.float32
    for got, want in [
        (y[2], [1.5, 8]),
        (weight.grad, [3, 4]),
        (x.grad, [[0.5, 0], [0, 2], [0, 0]]),
    ]:
        np.testing.assert_allclose(got.detach().float().cpu(), want, rtol=1e-2)


@every_format
def test_the_second_derivative_is_right(implementation, device, compressed):
    graph = graph_of([(0, 1)], 2, device=device)
    x = leaf([[2, 1], [0, 0]], device, torch.float64)
    h = maxk.maxk(x, 1, implementation=implementation)
    h = h if compressed else h.to_dense()
    total = maxk.aggregate(graph, h, "sum", implementation=implementation).square().sum()
    (grad,) = torch.autograd.grad(total, x, create_graph=True)
    (product,) = torch.autograd.grad(grad.sum(), x)
    assert total.item() == 4
    same(grad, [[4, 0], [0, 0]])
    same(product, [[2, 0], [0, 0]])
