"""Edges taken to be sorted, ids taken to be of one width."""

from __future__ import annotations

import itertools

import pytest
import torch

import maxk
from adversary.tiny import every_format, graph_of, leaf, same

UNSORTED = [((2, 0), 10.0), ((0, 1), 1.0), ((1, 0), 100.0)]


@every_format
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_edges_may_come_in_any_order(implementation, device, order, compressed):
    pairs, weights = zip(*[UNSORTED[i] for i in order], strict=True)
    weight = leaf(weights, device)
    x = torch.tensor([[1.0], [2], [3]], device=device)
    h = maxk.maxk(x, 1, implementation=implementation) if compressed else x
    graph = graph_of(pairs, 3, weight, device)
    y = maxk.aggregate(graph, h, "sum", implementation=implementation)
    y.sum().backward()
    same(y, [[230], [1], [0]])
    same(weight.grad, [[3, 1, 2][i] for i in order])


def test_every_integer_width_gives_the_same_bits(implementation, device):
    pairs, weights = zip(*UNSORTED, strict=True)
    edges = torch.tensor(pairs, device=device).t()
    weight = torch.tensor(weights, device=device)
    h = maxk.maxk(torch.tensor([[1.0], [2], [3]], device=device), 1, implementation=implementation)
    rows = [torch.tensor([0, 2, 3, 3]), torch.tensor([2, 1, 0]), weight[[0, 2, 1]]]
    rows = [part.to(device) for part in rows]
    for graph in (
        maxk.Graph.from_edge_index(edges.int(), 3, weight),
        maxk.Graph.from_edge_index(edges.long(), 3, weight),
        maxk.Graph.from_csr(rows[0].long(), rows[1].int(), rows[2]),
        maxk.Graph.from_csr(rows[0].int(), rows[1].long(), rows[2]),
    ):
        same(
            maxk.aggregate(graph, h, "sum", implementation=implementation), [[230], [1], [0]]
        )  # the same bits
    with pytest.raises(TypeError, match=r"edge_index must hold int64 or int32.*got torch.float32"):
        maxk.Graph.from_edge_index(edges.float(), 3)
    with pytest.raises(TypeError, match=r"edge_index must hold int64 or int32.*got torch.float64"):
        maxk.aggregate(edges.double(), h, "sum", implementation=implementation)
