"""A graph's edges in the order in which its caller gave them."""

from __future__ import annotations

import torch
from torch import Tensor

from maxk.graph.graph import Graph


def edges_in_order(graph: Graph) -> tuple[Tensor, Tensor | None]:
    """Edge list and weights as the caller gave them, filled self-loops last.

    Args:
        graph: one that keeps the order of its edges; otherwise the order is that of its CSR.

    Returns:
        int64 [2, E] (source, target), and [E] or None.
    """
    edges, order = graph.edge_index(), graph.edge_order
    if order is None:
        return edges, graph.edge_weight
    given = torch.empty_like(edges)
    given[:, order] = edges
    return given, graph.edge_weight


def number_of_nodes(graph: Graph, kind: str) -> int:
    """N of a square graph.

    Raises:
        ValueError: the graph is bipartite, which ``kind`` cannot hold.
    """
    if graph.num_src != graph.num_dst:
        raise ValueError(
            f"{kind} holds one set of nodes, got {graph.num_src} source and {graph.num_dst} target "
            "nodes; use to_scipy or to_adj_t for a bipartite graph"
        )
    return graph.num_src
