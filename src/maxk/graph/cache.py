"""Plain edge lists, converted once and never served stale.

A converted graph is remembered for the life of the ``edge_index`` tensor. Every later call compares
the tensor with the copy that the graph was made from, so a change by any route (in place, through a
NumPy view, through ``.data``) is seen. The comparison reads 16 bytes an edge twice, less than any
aggregation reads; a :class:`~maxk.graph.graph.Graph` made by the caller costs nothing.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from maxk.graph.graph import Graph, _check_weight, _from_edge_index


@dataclass(frozen=True)
class _Entry:
    owner: weakref.ref[Tensor]
    snapshot: Tensor
    num_nodes: int
    graph: Graph


_entries: dict[int, _Entry] = {}


def graph_of(edge_index: Tensor, num_nodes: int, edge_weight: Tensor | None = None) -> Graph:
    """The graph of an edge list on ``num_nodes`` nodes, converted on first sight.

    Args:
        edge_index: integer [2, E].
        num_nodes: N.
        edge_weight: [E] or None.
    """
    graph = _structure(edge_index, num_nodes)
    if edge_weight is None:
        return graph
    weight = _check_weight(edge_weight, graph.num_edges, "edge_weight", graph.device)
    return graph.with_weight(weight)


def _structure(edge_index: Tensor, num_nodes: int) -> Graph:
    if torch.compiler.is_compiling():
        raise RuntimeError(
            "a plain edge_index cannot be converted inside torch.compile; make the graph before: "
            "graph = maxk.Graph.from_edge_index(edge_index, num_nodes=...)"
        )
    key = id(edge_index)
    entry = _entries.get(key)
    if (
        entry is not None
        and entry.owner() is edge_index
        and entry.num_nodes == num_nodes
        and entry.snapshot.device == edge_index.device
        and entry.snapshot.dtype == edge_index.dtype
        and torch.equal(entry.snapshot, edge_index)
    ):
        return entry.graph
    graph = _from_edge_index(edge_index, num_nodes, None, keep_order=True)
    owner = weakref.ref(edge_index, lambda _: _entries.pop(key, None))
    _entries[key] = _Entry(owner, edge_index.detach().clone(), num_nodes, graph)
    return graph


def graph_of_matrix(matrix: Tensor) -> Graph:
    """The bipartite graph, columns to rows, of a sparse CSR feature matrix; made on first sight.

    Args:
        matrix: torch sparse CSR [N, F]; its values become edge weights. Their gradient is not
            followed.
    """
    key = id(matrix)
    values = matrix.values().detach()
    entry = _entries.get(key)
    if (
        entry is not None
        and entry.owner() is matrix
        and entry.snapshot.device == values.device
        and torch.equal(entry.snapshot, values)
    ):
        return entry.graph
    graph = Graph.from_csr(
        matrix.crow_indices(), matrix.col_indices(), values, num_src=matrix.shape[1]
    )
    owner = weakref.ref(matrix, lambda _: _entries.pop(key, None))
    _entries[key] = _Entry(owner, values.clone(), matrix.shape[0], graph)
    return graph
