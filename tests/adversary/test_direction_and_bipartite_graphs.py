"""Edges followed backwards; more targets than sources."""

from __future__ import annotations

import pytest
import torch

import maxk
from adversary.tiny import dtypes, every_format, graph_of, leaf, same


@dtypes
@every_format
def test_sources_and_targets_may_differ_in_number(implementation, device, dtype, compressed):
    pairs = torch.tensor([[0, 1, 1, 1], [0, 1, 2, 3]], device=device)
    for edges, counts, x, g, y, dx in [
        (pairs, (2, 4), [[1], [10]], [1, 2, 3, 4], [1, 10, 10, 10], [1, 9]),
        (pairs.flip(0), (4, 2), [[1], [2], [3], [4]], [1, 10], [1, 9], [1, 10, 10, 10]),
    ]:
        graph = maxk.Graph.from_edge_index(edges, counts)
        x = leaf(x, device, dtype)
        h = maxk.maxk(x, 1, implementation=implementation) if compressed else x
        out = maxk.aggregate(graph, h, "sum", implementation=implementation)
        out.backward(torch.tensor(g, dtype=dtype, device=device)[:, None])
        same(out.flatten(), y)
        same(x.grad.flatten(), dx)
        with pytest.raises(
            ValueError, match=f"square graph, got {counts[0]} source and {counts[1]}"
        ):
            maxk.aggregate(graph, h, "gcn", implementation=implementation)


@dtypes
@every_format
def test_every_format_keeps_the_direction(implementation, device, dtype, compressed):
    pairs = [(0, 1), (1, 2)]
    matrix = torch.zeros(3, 3)
    for source, target in pairs:
        matrix[target, source] = 1
    rows = matrix.to_sparse_csr()
    for graph in (
        graph_of(pairs, 3, device=device),
        graph_of(pairs[::-1], 3, device=device),
        maxk.Graph.from_csr(rows.crow_indices(), rows.col_indices()).to(device),
        graph_of([pair[::-1] for pair in pairs], 3, device=device).transpose(),
        torch.tensor(pairs, device=device).t().contiguous(),
    ):
        x = leaf([[1], [10], [100]], device, dtype)
        h = maxk.maxk(x, 1, implementation=implementation) if compressed else x
        y = maxk.aggregate(graph, h, "sum", implementation=implementation)
        y.backward(torch.tensor([[5], [7], [11]], dtype=dtype, device=device))
        same(y, [[0], [1], [10]])
        same(x.grad, [[7], [11], [0]])
