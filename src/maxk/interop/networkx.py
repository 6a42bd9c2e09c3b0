"""NetworkX graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maxk.graph.graph import Graph, _from_edge_index
from maxk.interop.edges import edges_in_order, number_of_nodes

if TYPE_CHECKING:
    from networkx import DiGraph, MultiDiGraph


def is_graph(source: object) -> bool:
    """Whether this is a NetworkX graph."""
    return all(hasattr(source, name) for name in ("is_directed", "is_multigraph", "nodes", "edges"))


def from_networkx(source: Any, edge_weight: Tensor | str | None = None) -> Graph:
    """The graph of a NetworkX graph; its nodes are numbered in the order of ``source.nodes``.

    An edge without direction makes two, one each way, the second ones behind all first ones; a
    self-loop makes one.

    Args:
        source: the graph.
        edge_weight: name of the weights (by default "weight" where any edge has it; an edge
            without it counts 1), or [E] in the order of the edges made.

    Raises:
        ValueError: no edge has weights of that name.
    """
    number = {node: i for i, node in enumerate(source.nodes)}
    name = edge_weight if isinstance(edge_weight, str) else "weight"
    edges = list(source.edges(data=name))
    if isinstance(edge_weight, str) and edges and all(w is None for _, _, w in edges):
        raise ValueError(
            f"no edge of the NetworkX graph has data named {edge_weight!r}; name another or leave "
            "edge_weight out"
        )
    edges = [(number[s], number[t], w) for s, t, w in edges]
    if not source.is_directed():
        edges += [(t, s, w) for s, t, w in edges if s != t]
    edge_index = torch.tensor([edge[:2] for edge in edges], dtype=torch.int64).reshape(-1, 2).t()
    weight = edge_weight if isinstance(edge_weight, Tensor) else None
    if weight is None and any(w is not None for _, _, w in edges):
        weight = torch.tensor([1.0 if w is None else float(w) for _, _, w in edges])
    return _from_edge_index(edge_index, len(number), weight, keep_order=True)


def to_networkx(graph: Graph, *, multigraph: bool = False) -> DiGraph | MultiDiGraph:
    """A directed NetworkX graph on the nodes 0..N-1, weights as edge data "weight".

    Args:
        graph: a square graph.
        multigraph: make a ``MultiDiGraph``, which parallel edges need.

    Raises:
        ValueError: the graph is bipartite, or has parallel edges and ``multigraph`` is False.

    Example:
        >>> import torch, maxk
        >>> graph = maxk.Graph.from_edge_index(torch.tensor([[0, 2], [1, 0]]), num_nodes=4)
        >>> maxk.interop.to_networkx(graph).number_of_nodes()
        4
    """
    import networkx

    result = networkx.MultiDiGraph() if multigraph else networkx.DiGraph()
    result.add_nodes_from(range(number_of_nodes(graph, "a NetworkX graph")))
    edge_index, weight = edges_in_order(graph)
    pairs = edge_index.t().tolist()
    if weight is None:
        result.add_edges_from(pairs)
    else:
        values = weight.detach().tolist()
        result.add_weighted_edges_from((s, t, w) for (s, t), w in zip(pairs, values, strict=True))
    if result.number_of_edges() != graph.num_edges:
        raise ValueError(
            f"the graph has {graph.num_edges - result.number_of_edges()} parallel edges, which a "
            "DiGraph cannot hold; pass multigraph=True"
        )
    return result
