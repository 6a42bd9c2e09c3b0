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
    snapshot: tuple[Tensor, ...]
    num_nodes: int
    graph: Graph


_entries: dict[int, _Entry] = {}


def _kept(owner: Tensor, parts: tuple[Tensor, ...], num_nodes: int) -> Graph | None:
    """The graph made from a tensor, if nothing in the tensor's parts has changed since."""
    entry = _entries.get(id(owner))
    if entry is None or entry.owner() is not owner or entry.num_nodes != num_nodes:
        return None
    for then, now in zip(entry.snapshot, parts, strict=True):
        if then.device != now.device or then.dtype != now.dtype or not torch.equal(then, now):
            return None
    return entry.graph


def _keep(owner: Tensor, snapshot: tuple[Tensor, ...], num_nodes: int, graph: Graph) -> Graph:
    key = id(owner)
    reference = weakref.ref(owner, lambda _: _entries.pop(key, None))
    _entries[key] = _Entry(reference, snapshot, num_nodes, graph)
    return graph


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
    graph = _kept(edge_index, (edge_index,), num_nodes)
    if graph is not None:
        return graph
    graph = _from_edge_index(edge_index, num_nodes, None, keep_order=True)
    return _keep(edge_index, (edge_index.detach().clone(),), num_nodes, graph)


def graph_of_matrix(matrix: Tensor) -> Graph:
    """The bipartite graph, columns to rows, of a sparse CSR feature matrix; made on first sight.

    Args:
        matrix: torch sparse CSR [N, F]; its values become edge weights. Their gradient is not
            followed.
    """
    parts = (matrix.crow_indices(), matrix.col_indices(), matrix.values().detach())
    graph = _kept(matrix, parts, matrix.shape[0])
    if graph is not None:
        return graph
    # The graph may share what it is given, and the caller may change that in place.
    indptr, indices, values = (part.clone() for part in parts)
    graph = Graph.from_csr(indptr, indices, values, num_src=matrix.shape[1])
    return _keep(matrix, (indptr, indices, values), matrix.shape[0], graph)
