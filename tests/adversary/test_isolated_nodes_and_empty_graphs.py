"""Nodes without neighbours, graphs without edges or nodes: memory that nobody wrote, or a crash."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import maxk
from adversary.tiny import NAN, dtypes, every_format, graph_of, leaf, same
from maxk.cli.main import main


@dtypes
@every_format
def test_a_node_without_neighbours_gets_zeros(implementation, device, dtype, compressed):
    junk = torch.full((3, 2), NAN, dtype=dtype, device=device)
    del junk
    graph = graph_of([(0, 1)], 3, device=device)
    x = leaf([[1, 2], [3, 4], [5, 6]], device, dtype)
    h = maxk.maxk(x, 2, implementation=implementation) if compressed else x
    y = maxk.aggregate(graph, h, "mean", implementation=implementation)
    y.sum().backward()
    same(y, [[0, 0], [1, 2], [0, 0]])
    same(x.grad, [[1, 1], [0, 0], [0, 0]])


@dtypes
@pytest.mark.parametrize("nodes", [4, 0])
def test_a_graph_without_edges_or_nodes_aggregates_to_zeros(implementation, device, dtype, nodes):
    graph = graph_of([], nodes, device=device)
    x = torch.ones(nodes, 2, dtype=dtype, device=device)
    with maxk.implementation(implementation):
        for h, reduce in itertools.product([x, maxk.maxk(x, 1), maxk.maxk(x, 2)], ["sum", "mean"]):
            same(maxk.aggregate(graph, h, reduce), [[0.0, 0.0]] * nodes or np.zeros((0, 2)))
        conv = maxk.nn.GCNConv(2, 3).to(device, dtype)
        y = conv(maxk.maxk(x, 2), graph)
        assert y.shape == (nodes, 3)
        torch.testing.assert_close(y, conv.lin(x) + conv.bias)
        y.sum().backward()


@pytest.mark.parametrize("model", ["sage", "gcn"])
def test_a_graph_without_edges_trains_on_the_command_line(tmp_path, monkeypatch, model):
    monkeypatch.chdir(tmp_path)
    part = np.arange(4) % 3
    np.savez(
        "bare.npz", edge_index=np.zeros((2, 0), np.int64), x=np.ones((4, 2), np.float32),
        y=np.array([0, 1, 0, 1]), train_mask=part == 0, val_mask=part == 1, test_mask=part == 2,
    )  # fmt: skip
    words = ["train", "--dataset", "bare.npz", "--model", model, "--hidden", "4", "--k", "2"]
    assert main([*words, "--epochs", "1", "--quiet"]) == 0
