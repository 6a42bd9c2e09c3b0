"""DGL graphs, through their sorted arrays."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maxk.graph import cache
from maxk.graph.csr import from_arrays
from maxk.graph.graph import Graph
from maxk.graph.kept import make
from maxk.interop.edges import edges_in_order


def is_graph(source: object) -> bool:
    """Whether this is a ``DGLGraph``."""
    return all(hasattr(source, name) for name in ("adj_tensors", "num_src_nodes", "edata"))


def from_dgl(source: Any, edge_weight: Tensor | str | None = None) -> Graph:
    """The graph of a ``DGLGraph`` of one edge type; its edges are not sorted by target again.

    Args:
        source: the graph.
        edge_weight: [E] in the order of the edge ids, or its name in ``source.edata``.

    Raises:
        ValueError: there are several edge types, or no weights of that name.
    """
    _check_one_kind(source)
    weight = edge_weight if isinstance(edge_weight, Tensor) else None
    if isinstance(edge_weight, str):
        if edge_weight not in source.edata:
            raise ValueError(
                f"the DGL graph has no edge data named {edge_weight!r} (it has "
                f"{sorted(source.edata)}); name another or leave edge_weight out"
            )
        weight = source.edata[edge_weight]
        if weight.dim() == 2 and weight.shape[1] == 1:
            weight = weight.squeeze(1)
    return _make(_arrays(source), source.num_src_nodes()).with_weight(weight)


def graph_of(source: Any, edge_weight: Tensor | None = None) -> Graph:
    """The graph of a ``DGLGraph``, made on first sight and again when its edges change.

    Args:
        source: a ``DGLGraph`` or block of one edge type, or a :class:`~maxk.graph.graph.Graph`.
        edge_weight: [E] in the order of the edge ids, or None.

    Raises:
        TypeError: ``source`` is neither.
        ValueError: it holds several edge types, or weights come beside a Graph.
    """
    if isinstance(source, Graph):
        return cache.graph_of(source, (source.num_src, source.num_dst), edge_weight)
    if not is_graph(source):
        raise TypeError(f"graph must be a DGLGraph or a maxk.Graph, got {type(source).__name__}")
    _check_one_kind(source)
    counts = (source.num_src_nodes(), source.num_dst_nodes())
    graph = cache.remembered(
        source, _arrays(source), counts, lambda arrays: _make(arrays, counts[0])
    )
    return graph if edge_weight is None else graph.with_weight(edge_weight)


def _arrays(source: Any) -> tuple[Tensor, ...]:
    """Row pointers, sources and edge ids, by target."""
    return tuple(source.adj_tensors("csc"))


def _make(arrays: tuple[Tensor, ...], num_src: int) -> Graph:
    indptr, sources, edges = arrays
    num_edges = sources.shape[0]
    if edges.shape[0] != num_edges:  # DGL leaves them out where they count up
        return Graph(from_arrays(indptr, sources, num_src))
    order = make(lambda: edges.to(torch.int64, copy=True))
    if num_edges and not _numbers_each_once(order):
        raise ValueError(
            f"the edge ids of the DGL graph must hold each of 0..{num_edges - 1} once; make the "
            "graph again with dgl.graph(...)"
        )
    return Graph(from_arrays(indptr, sources, num_src, order))


def _numbers_each_once(order: Tensor) -> bool:
    low, high = torch.aminmax(order)
    count = order.shape[0]
    return int(low) == 0 and int(high) == count - 1 and int(torch.bincount(order).max()) == 1


def _check_one_kind(source: Any) -> None:
    kinds = source.canonical_etypes
    if len(kinds) != 1:
        names = ", ".join(str(kind) for kind in kinds)
        raise ValueError(
            f"the DGL graph holds several edge types ({names}); pass one of them: graph[edge_type]"
        )


def to_dgl(graph: Graph) -> Any:
    """A ``DGLGraph``, weights as edge data "w"; a bipartite graph has nodes "src" and "dst".

    Raises:
        ImportError: DGL is not installed, or does not work with this torch.
    """
    import dgl

    edge_index, weight = edges_in_order(graph)
    ends = (edge_index[0], edge_index[1])
    if graph.num_src == graph.num_dst:
        result = dgl.graph(ends, num_nodes=graph.num_src)
    else:
        counts = {"src": graph.num_src, "dst": graph.num_dst}
        result = dgl.heterograph({("src", "to", "dst"): ends}, num_nodes_dict=counts)
    if weight is not None:
        result.edata["w"] = weight
    return result
