"""Small graphs that bite, and a plain numpy aggregation that shares no code with the package."""

from __future__ import annotations

import numpy as np
import torch

from maxk.graph.graph import Graph


def random_graph(
    num_src: int, num_dst: int, edges: int, *, weighted: bool, seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Graph:  # fmt: skip
    """Directed, with parallel edges and empty rows, unsorted."""
    g = torch.Generator().manual_seed(seed)
    source = torch.randint(0, num_src, (edges,), generator=g)
    target = (torch.rand(edges, generator=g) ** 2 * num_dst * 0.8).long().clamp(max=num_dst - 1)
    weight = torch.rand(edges, generator=g, dtype=dtype) + 0.5 if weighted else None
    return Graph.from_edge_index(torch.stack([source, target]), (num_src, num_dst), weight)


def star(leaves: int) -> Graph:
    """Every leaf 1.. points to node 0."""
    source = torch.arange(1, leaves + 1)
    return Graph.from_edge_index(torch.stack([source, torch.zeros_like(source)]), leaves + 1)


def dense_matrix(graph: Graph, reduce: str) -> np.ndarray:
    """The matrix [M, N] that an aggregation multiplies with, in float64, edge by edge."""
    source, target = graph.edge_index().cpu().numpy()
    weight = graph.weight
    value = np.ones(graph.num_edges) if weight is None else weight.detach().double().cpu().numpy()
    matrix = np.zeros((graph.num_dst, graph.num_src))
    if reduce == "gcn":
        for node in range(graph.num_dst):
            if not np.any((source == node) & (target == node)):
                source, target = np.append(source, node), np.append(target, node)
                value = np.append(value, 1.0)
    for s, t, w in zip(source, target, value, strict=True):
        matrix[t, s] += w
    if reduce == "mean":
        count = np.bincount(target, minlength=graph.num_dst)
        matrix /= np.maximum(count, 1)[:, None]
    if reduce == "gcn":
        degree = np.zeros(graph.num_dst)
        np.add.at(degree, target, value)
        scale = np.where(degree > 0, 1 / np.sqrt(np.where(degree > 0, degree, 1)), 0)
        matrix = scale[:, None] * matrix * scale[None, :]
    return matrix
