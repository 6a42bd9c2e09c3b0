"""Graphs and features cross from process to process: pickled, copied, sent to workers."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import maxk


def odd_graph(weighted: bool) -> maxk.Graph:
    edges = torch.tensor([[2, 0, 1, 0], [0, 1, 0, 2]])
    weight = torch.tensor([10.0, 1, 100, 7]) if weighted else None
    return maxk.Graph.from_edge_index(edges, 4, weight)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("filled", [False, True], ids=["fresh", "with what is made on demand"])
@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_a_graph_crosses(weighted: bool, filled: bool, way: str) -> None:
    graph = odd_graph(weighted)
    if filled:
        graph.prepare("gcn").prepare("mean")
    back = pickle.loads(pickle.dumps(graph)) if way == "pickle" else copy.deepcopy(graph)
    x = torch.arange(8.0).reshape(4, 2)
    for reduce in ("sum", "mean", "gcn"):
        h = maxk.maxk(x, 1)
        assert torch.equal(maxk.aggregate(back, h, reduce), maxk.aggregate(graph, h, reduce))
    assert torch.equal(back.transpose().indices, graph.transpose().indices)
    if weighted:
        assert torch.equal(back.edge_weight, graph.edge_weight)


def test_features_cross() -> None:
    h = maxk.maxk(torch.randn(5, 9, generator=torch.Generator().manual_seed(0)), 3)
    back = pickle.loads(pickle.dumps(h)).validate()
    assert torch.equal(back.to_dense(), h.to_dense())
    assert back.width == 9
