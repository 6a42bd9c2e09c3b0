"""One function for every graph that another library may hold."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from maxk.graph.graph import Graph
from maxk.graph.sparse import (
    Arrays,
    Counts,
    arrays_of,
    graph_from,
    graph_from_edge_index,
    is_edge_index,
    weight_of,
)
from maxk.interop import networkx, pyg, scipy
from maxk.interop.dgl import graph as dgl

if TYPE_CHECKING:
    from collections.abc import Sequence

Rows = Literal["targets", "sources"]


def to_graph(
    source: Any,
    num_nodes: int | Sequence[int | None] | None = None,
    edge_weight: Tensor | str | None = None,
    *,
    rows: Rows = "targets",
) -> Graph:
    """Makes a :class:`~maxk.graph.graph.Graph` of the graph of another library.

    One direction for all of them, ``y[t] += w * h[s]`` for an edge from s to t::

        h[0] --- w ---> y[2]     edge_index = [[0], [2]]       first row sources, second targets
                                 adj_t[2, 0] = w               a matrix, rows="targets"
                                 A[0, 2] = w                   a matrix, rows="sources"
                                 G.add_edge(0, 2, weight=w)    NetworkX
                                 dgl.graph(([0], [2]))         DGL

    Takes

    - PyG: ``Data`` (its ``edge_index``, with ``edge_weight`` or an ``edge_attr`` of one number an
      edge; or its ``adj_t``), one edge type of ``HeteroData``, ``edge_index``, and ``EdgeIndex``,
      of which what is sorted is not sorted again;
    - torch: sparse CSR, CSC and COO matrices; ``torch_sparse.SparseTensor``;
    - SciPy: any sparse matrix or array; CSR and CSC are not sorted again;
    - NetworkX: graphs with or without direction, weights and parallel edges; nodes in the order of
      ``G.nodes``; an edge without direction counts both ways;
    - DGL: a graph of one edge type, through its CSC arrays, edges in the order of their ids.

    Entries of a matrix are weights unless all are 1. Nodes without edges, weights with their dtype
    and gradient, and the order of the edges are kept. Ids are copied, weights are not: a later
    change of the source's ids does not reach the graph, one of its weights does.

    Args:
        source: the graph.
        num_nodes: N, or (num_src, num_dst), for an edge list that does not say it.
        edge_weight: [E] in the order of the edges; or the name under which a ``Data``, NetworkX or
            DGL graph holds it (by default what is named above for PyG, "weight" for NetworkX where
            any edge has it, none for DGL).
        rows: what the rows of a matrix are.

    Raises:
        TypeError: ``source`` is no graph, or an array has the wrong dtype.
        ValueError: arrays disagree, an id lies outside the graph, or an argument does not go with
            this kind of graph.

    Example:
        >>> import maxk, scipy.sparse
        >>> A = scipy.sparse.csr_array(([2.0], ([0], [2])), shape=(3, 3))
        >>> graph = maxk.to_graph(A, rows="sources")
        >>> graph.edge_index().tolist(), graph.weight.tolist()
        ([[0], [2]], [2.0])
    """
    if rows not in ("targets", "sources"):
        raise ValueError(f"rows must be 'targets' or 'sources', got {rows!r}")
    arrays = arrays_of(source)
    if arrays is None and scipy.is_matrix(source):
        arrays = scipy.arrays(source)
    if arrays is None and (pair := _edge_list(source)) is not None:
        source, arrays = pair, arrays_of(pair)
    if arrays is not None:
        return _from_arrays(source, arrays, num_nodes, edge_weight, rows)
    if rows == "sources":
        raise ValueError(
            f"rows='sources' belongs to a sparse matrix, got {type(source).__name__}; leave it out"
        )
    if isinstance(source, Graph):
        graph = source if edge_weight is None else source.with_weight(_tensor(edge_weight, source))
    elif dgl.is_graph(source):
        graph = dgl.from_dgl(source, edge_weight)
    elif networkx.is_graph(source):
        graph = networkx.from_networkx(source, edge_weight)
    elif pyg.is_data(source):
        inner, counts, weight = pyg.parts(source, edge_weight)
        return to_graph(inner, counts if num_nodes is None else num_nodes, weight)
    else:
        raise TypeError(
            "source must be a PyG Data or edge_index, a torch or SciPy sparse matrix, a NetworkX "
            f"or DGL graph, got {type(source).__name__}"
        )
    _check_counts(graph, _pair(num_nodes))
    return graph


def _from_arrays(
    source: Any,
    arrays: Arrays,
    num_nodes: int | Sequence[int | None] | None,
    edge_weight: Tensor | str | None,
    rows: Rows,
) -> Graph:
    weight = None if edge_weight is None else _tensor(edge_weight, source)
    matrix = arrays.values is not None or arrays.kind != "edges"
    if rows == "sources":
        if not matrix:
            raise ValueError(
                "rows='sources' belongs to a sparse matrix; turn an edge_index round with "
                "edge_index.flip(0)"
            )
        arrays = arrays.transpose()
    if matrix and weight is not None and arrays.values is not None:
        raise ValueError(
            "edge_weight belongs to an edge list, but the sparse matrix holds weights of its own; "
            "leave it out"
        )
    if weight is None:
        weight = weight_of(arrays.values)
    counts = _pair(num_nodes)
    if is_edge_index(source):
        graph = graph_from_edge_index(source, weight, counts)
    else:
        graph = graph_from(arrays, weight, counts)
    _check_counts(graph, counts)
    return graph


def _edge_list(source: object) -> Tensor | None:
    """``edge_index`` of a NumPy array [2, E] or a pair of id lists; None for all else."""
    if hasattr(source, "__array__"):
        return torch.as_tensor(source)
    if isinstance(source, tuple | list) and len(source) == 2:
        return torch.stack([torch.as_tensor(ids) for ids in source])
    return None


def _tensor(edge_weight: Tensor | str, source: object) -> Tensor:
    if isinstance(edge_weight, str):
        raise ValueError(
            f"edge_weight={edge_weight!r} names data of a PyG, NetworkX or DGL graph; pass a "
            f"tensor [E] beside {type(source).__name__}"
        )
    return edge_weight


def _pair(num_nodes: int | Sequence[int | None] | None) -> Counts:
    if not isinstance(num_nodes, tuple | list):
        # NumPy's integers are no int.
        count = None if num_nodes is None else operator.index(num_nodes)  # type: ignore[arg-type]
        return (count, count)
    if len(num_nodes) != 2:
        raise ValueError(f"num_nodes must be N or (num_src, num_dst), got {num_nodes!r}")
    return (num_nodes[0], num_nodes[1])


def _check_counts(graph: Graph, counts: Counts) -> None:
    """Raises ValueError where a graph that says its sizes itself is asked to have others."""
    for have, want, what in zip(
        (graph.num_src, graph.num_dst), counts, ("source", "target"), strict=True
    ):
        if want is not None and want != have:
            raise ValueError(
                f"num_nodes asks for {want} {what} nodes, but the graph has {have}; leave it out"
            )
