"""PyG's data objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maxk.graph.graph import Graph
from maxk.graph.sparse import Counts
from maxk.interop.edges import edges_in_order, number_of_nodes

if TYPE_CHECKING:
    from torch_geometric.data import Data


def is_data(source: object) -> bool:
    """Whether this is a PyG ``Data``, ``HeteroData`` or one edge type of the latter."""
    return any(hasattr(source, name) for name in ("edge_index", "adj_t", "edge_types"))


def parts(data: Any, edge_weight: Tensor | str | None = None) -> tuple[Any, Counts | None, Any]:
    """(``edge_index`` or ``adj_t``, node counts, weights) of a ``Data`` or one edge type.

    Args:
        data: the object.
        edge_weight: weights, or the name under which ``data`` holds them; by default
            ``edge_weight``, else an ``edge_attr`` of one floating-point number an edge.

    Raises:
        ValueError: there are several edge types, no edges, or no weights of that name.
    """
    if hasattr(data, "edge_types"):
        names = ", ".join(str(kind) for kind in data.edge_types)
        raise ValueError(
            f"HeteroData holds several graphs ({names}); pass one of them: "
            "maxk.to_graph(data[edge_type])"
        )
    edge_index = getattr(data, "edge_index", None)
    adj_t = getattr(data, "adj_t", None)
    if isinstance(edge_weight, str):
        name = edge_weight
        edge_weight = getattr(data, name, None)
        if not isinstance(edge_weight, Tensor):
            raise ValueError(
                f"the PyG data has no tensor named {name!r}; name another or leave edge_weight out"
            )
    if edge_index is None:
        if adj_t is None:
            raise ValueError("the PyG data holds neither edge_index nor adj_t; it has no edges")
        return adj_t, None, edge_weight
    if edge_weight is None:
        edge_weight = _own_weight(data)
    return edge_index, _counts(data), edge_weight


def _counts(data: Any) -> Counts:
    if hasattr(data, "_key"):  # one edge type knows the nodes of its two ends
        num_src, num_dst = data.size()
        return num_src, num_dst
    return data.num_nodes, data.num_nodes


def _own_weight(data: Any) -> Tensor | None:
    weight = getattr(data, "edge_weight", None)
    if weight is not None:
        return _flat(weight)
    features = getattr(data, "edge_attr", None)
    if not isinstance(features, Tensor) or not features.is_floating_point():
        return None
    return _flat(features) if features.dim() == 1 or features.shape[1:] == (1,) else None


def _flat(weight: Tensor) -> Tensor:
    return weight.reshape(-1) if weight.dim() == 2 and weight.shape[1] == 1 else weight


def to_pyg(graph: Graph) -> Data:
    """PyG ``Data`` with ``edge_index``, ``num_nodes`` and, for a weighted graph, ``edge_weight``.

    Raises:
        ValueError: the graph is bipartite.

    Example:
        >>> import torch, maxk
        >>> graph = maxk.Graph.from_edge_index(torch.tensor([[0], [1]]), num_nodes=3)
        >>> maxk.interop.to_pyg(graph)
        Data(edge_index=[2, 1], num_nodes=3)
    """
    from torch_geometric.data import Data

    edge_index, weight = edges_in_order(graph)
    data = Data(edge_index=edge_index, num_nodes=number_of_nodes(graph, "PyG's Data"))
    if weight is not None:
        data.edge_weight = weight
    return data


def to_adj_t(graph: Graph) -> Tensor:
    """The matrix ``adj_t`` [M, N] (rows targets) in torch sparse CSR, which PyG's layers take.

    Without weights its entries are 1 in float32.
    """
    weight = graph.weight
    values = torch.ones(graph.num_edges, device=graph.device) if weight is None else weight
    shape = (graph.num_dst, graph.num_src)
    ids = (graph.indptr, graph.indices.long())
    # A graph was checked when it was made.
    return torch.sparse_csr_tensor(*ids, values, size=shape, check_invariants=False)
