"""Self-loops filled in twice; parallel edges merged in one place and counted in another."""

from __future__ import annotations

import torch

import maxk
from adversary.tiny import dtypes, every_format, graph_of, leaf, same


@dtypes
@every_format
def test_a_self_loop_that_is_there_is_not_doubled(implementation, device, dtype, compressed):
    graph = graph_of([(0, 1), (1, 0), (0, 0)], 2, device=device)
    x = torch.tensor([[1.0], [3.0]], dtype=dtype, device=device)
    h = maxk.maxk(x, 1, implementation=implementation) if compressed else x
    y = maxk.aggregate(graph, h, "gcn", implementation=implementation)
    want = torch.tensor([[2.0], [2.0]], dtype=dtype, device=device)
    torch.testing.assert_close(y, want, rtol=0, atol=max(1e-6, 2 * torch.finfo(dtype).eps))
    assert graph.with_self_loops().num_edges == 4


@every_format
def test_parallel_edges_each_count(implementation, device, compressed):
    pairs, x = [(0, 1), (0, 1)], torch.tensor([[2.0], [0.0]], device=device)
    h = maxk.maxk(x, 1, implementation=implementation) if compressed else x
    weight = leaf([0.5, 1.5], device)
    indptr = torch.tensor([0, 0, 2], device=device)
    indices = torch.tensor([0, 0], device=device)
    for plain, weighted in [
        (graph_of(pairs, 2, device=device), graph_of(pairs, 2, weight, device)),
        (maxk.Graph.from_csr(indptr, indices), maxk.Graph.from_csr(indptr, indices, weight)),
    ]:
        weight.grad = None
        same(maxk.aggregate(plain, h, "sum", implementation=implementation), [[0], [4]])
        same(maxk.aggregate(plain, h, "mean", implementation=implementation), [[0], [2]])
        y = maxk.aggregate(weighted, h, "sum", implementation=implementation)
        y[1].sum().backward()
        same(y, [[0], [4]])
        same(weight.grad, [2, 2])
