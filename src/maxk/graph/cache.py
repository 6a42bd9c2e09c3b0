"""Plain edge lists and sparse matrices, converted once and never served stale.

A converted graph is remembered for the life of the ``edge_index`` or ``adj_t``. Every later call
compares the arrays with the copy that the graph was made from, so a change by any route (in place,
through a NumPy view, through ``.data``) is seen. The comparison reads 16 bytes an edge twice, less
than any aggregation reads; a :class:`~maxk.graph.graph.Graph` made by the caller costs nothing.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from maxk.graph import kept
from maxk.graph.graph import Graph, _check_weight
from maxk.graph.sparse import (
    Arrays,
    arrays_of,
    graph_from,
    graph_from_edge_index,
    is_edge_index,
    weight_of,
)


@dataclass(frozen=True)
class _Entry:
    owner: weakref.ref[Any]
    snapshot: tuple[Tensor, ...]
    num_nodes: tuple[int, int]
    graph: Graph


_entries: dict[int, _Entry] = {}
_promised: set[int] = set()


@contextlib.contextmanager
def unchanged(owner: Tensor) -> Iterator[None]:
    """Takes the caller's word, while inside, that a converted tensor does not change.

    Nothing is compared then, so that no call waits for the device and a CUDA graph can hold it.

    Args:
        owner: an ``edge_index`` or a sparse matrix.
    """
    new = id(owner) not in _promised
    _promised.add(id(owner))
    try:
        yield
    finally:
        if new:
            _promised.discard(id(owner))


def remembered(
    owner: object,
    parts: tuple[Tensor, ...],
    num_nodes: tuple[int, int],
    convert: Callable[[tuple[Tensor, ...]], Graph],
) -> Graph:
    """The graph made from an object, while nothing in the object's parts has changed since.

    Args:
        owner: the object; the graph is forgotten with it.
        parts: the arrays that the graph follows from.
        num_nodes: (num_src, num_dst).
        convert: makes the graph of a copy of the parts, which nobody else can change in place.
    """
    key = id(owner)
    entry = _entries.get(key)
    if (
        entry is not None
        and entry.owner() is owner
        and entry.num_nodes == num_nodes
        and len(entry.snapshot) == len(parts)
        and (
            key in _promised
            or all(kept.same(*pair) for pair in zip(entry.snapshot, parts, strict=True))
        )
    ):
        return entry.graph
    snapshot, graph = kept.make(lambda: _convert(parts, convert))
    reference = weakref.ref(owner, lambda _: _entries.pop(key, None))
    _entries[key] = _Entry(reference, snapshot, num_nodes, graph)
    return graph


def _convert(
    parts: tuple[Tensor, ...], convert: Callable[[tuple[Tensor, ...]], Graph]
) -> tuple[tuple[Tensor, ...], Graph]:
    snapshot = tuple(part.detach().clone() for part in parts)
    return snapshot, convert(snapshot)


def graph_of(
    edges: Any, num_nodes: int | tuple[int, int], edge_weight: Tensor | None = None
) -> Graph:
    """The graph of an edge list or sparse matrix, converted on first sight; a Graph is returned.

    Args:
        edges: a :class:`~maxk.graph.graph.Graph`; ``edge_index`` [2, E] (source, target), plain or
            PyG's ``EdgeIndex``; or ``adj_t`` [M, N] (rows targets), torch sparse CSR, CSC or COO,
            or ``torch_sparse.SparseTensor``, whose values are edge weights.
        num_nodes: N, or (num_src, num_dst); a matrix says it itself.
        edge_weight: [E] in the order of ``edge_index``, or None.

    Raises:
        TypeError: ``edges`` is none of these.
        ValueError: ``edge_weight`` beside a Graph or a matrix, which carry their own; or the edges
            are wrong.
    """
    if isinstance(edges, Graph):
        if edge_weight is not None:
            raise ValueError(
                "edge_weight belongs to a plain edge_index; give a Graph its weights in "
                "Graph.from_edge_index(edge_index, edge_weight=...)"
            )
        return edges
    if torch.compiler.is_compiling():
        raise RuntimeError(
            "a plain edge_index or adj_t cannot be converted inside torch.compile; make the graph "
            "before: graph = maxk.Graph.from_edge_index(edge_index, num_nodes=...)"
        )
    arrays = arrays_of(edges)
    if arrays is None:
        raise TypeError(
            "graph must be a maxk.Graph or an edge_index or adj_t tensor, got "
            f"{type(edges).__name__}; call maxk.to_graph(...) for other kinds of graphs"
        )
    if edge_weight is not None and arrays.values is not None:
        raise ValueError(
            "edge_weight belongs to a plain edge_index, but the sparse matrix holds weights of its "
            "own; pass one of them"
        )
    pair = num_nodes if isinstance(num_nodes, tuple) else (num_nodes, num_nodes)
    graph = _structure(edges, arrays, pair)
    weight = edge_weight
    if weight is None and arrays.values is not None and arrays.values.requires_grad:
        weight = arrays.values
    if weight is None:
        return graph
    return graph.with_weight(_check_weight(weight, graph.num_edges, "edge_weight", graph.device))


def _structure(owner: object, arrays: Arrays, num_nodes: tuple[int, int]) -> Graph:
    """The graph with the constant weights of a matrix; those with a gradient are put in later."""
    values = arrays.values
    constant = () if values is None or values.requires_grad else (values,)

    def convert(snapshot: tuple[Tensor, ...]) -> Graph:
        if is_edge_index(owner):
            return graph_from_edge_index(owner, None, num_nodes)
        weight = weight_of(snapshot[-1]) if constant else None
        ids = snapshot[: len(arrays.ids)]
        return graph_from(replace(arrays, ids=ids, values=None), weight, num_nodes)

    return remembered(owner, (*arrays.ids, *constant), num_nodes, convert)


def graph_of_matrix(matrix: Tensor) -> Graph:
    """The bipartite graph, columns to rows, of a sparse CSR feature matrix; made on first sight.

    Args:
        matrix: torch sparse CSR [N, F]; its values become edge weights. Their gradient is not
            followed.
    """
    arrays = arrays_of(matrix)
    assert arrays is not None
    assert arrays.values is not None
    constant = replace(arrays, values=arrays.values.detach())
    return _structure(matrix, constant, (matrix.shape[1], matrix.shape[0]))
