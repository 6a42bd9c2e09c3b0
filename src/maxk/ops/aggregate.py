"""Aggregation over a graph, the one public function over SpGEMM and SpMM and their gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maxk.cbsr import CBSR
from maxk.core.checks import check_matrix, check_rows, check_same_device
from maxk.graph.cache import graph_of
from maxk.graph.graph import Graph
from maxk.graph.weights import check_reduce
from maxk.ops.autograd import calls
from maxk.ops.spmm.reference import accumulation_dtype


def aggregate(
    graph: Any,
    features: CBSR | Tensor,
    reduce: str = "mean",
    *,
    edge_weight: Tensor | None = None,
    fill_self_loops: bool = True,
    implementation: str | None = None,
) -> Tensor:
    r"""Sums the features of every node's in-neighbours.

    .. math:: y_t = R_t \sum_{e = (s \to t)} w_e\, C_s\, h_s

    with R = C = 1 for ``"sum"``; R = 1 / in-degree for ``"mean"`` (parallel edges each count,
    weights do not change the count); R = C = in-degree\ :sup:`-1/2` over the graph with its missing
    self-loops filled for ``"gcn"`` (`Kipf and Welling <https://arxiv.org/abs/1609.02907>`_).
    A node without in-edges gets 0. CBSR features take SpGEMM forward and SSpMM backward, dense
    features SpMM.

    Accumulates in float32 (float64 for float64). Bitwise repeatable; the gradient too under
    ``torch.use_deterministic_algorithms(True)``. Differentiable any number of times in the features
    and the edge weights.

    Args:
        graph: a :class:`~maxk.graph.graph.Graph`; or an ``edge_index`` [2, E] (source, target),
            plain or PyG's ``EdgeIndex``; or an ``adj_t`` [M, N], torch sparse or
            ``torch_sparse.SparseTensor``. All but the first are converted once and checked for
            changes on every call.
        features: [N, D], CBSR or dense.
        reduce: "sum", "mean" or "gcn".
        edge_weight: [E] in the caller's edge order, beside an ``edge_index`` only; a Graph and an
            ``adj_t`` carry their own.
        fill_self_loops: for "gcn", add the missing self-loops first.
        implementation: "reference", "cpu" or "cuda"; by default the device decides.

    Returns:
        [M, D] in the dtype of the features.

    Raises:
        TypeError: the graph is none of these, or features or weights have an unsupported or
            differing dtype.
        ValueError: shapes or devices disagree, ``reduce`` is unknown, or "gcn" meets a bipartite
            graph.

    Example:
        >>> import torch, maxk
        >>> graph = maxk.Graph.from_edge_index(torch.tensor([[0, 1], [2, 2]]), num_nodes=3)
        >>> h = maxk.maxk(torch.tensor([[3.0, 1.0], [2.0, 4.0], [0.0, 0.0]]), k=1)
        >>> maxk.aggregate(graph, h, reduce="sum")[2]
        tensor([3., 4.])
    """
    check_reduce(reduce)
    if isinstance(features, CBSR):
        values, columns, width = features.values, features.columns.contiguous(), features.width
    else:
        values, columns = check_matrix(features, "features"), None
        width = values.shape[1]
    graph = graph_of(graph, values.shape[0], edge_weight)
    check_same_device(values.device, "features", graph.device, "graph")
    check_rows(values.shape[0], graph.num_src, "features", "source nodes")
    if reduce == "gcn":
        graph = graph.with_self_loops() if fill_self_loops else _square(graph)
    weight = _weight(graph, values)
    dtype = accumulation_dtype(values.dtype)
    if reduce == "gcn" and weight is not None and weight.requires_grad:
        # The scales depend on the weights, so the gradient must pass through them.
        weight, reduce = graph.gcn_weight(weight, dtype), "sum"
    adjacency = graph.adjacency(reduce, dtype)
    return calls(implementation).aggregate(adjacency, weight, values.contiguous(), columns, width)


def _square(graph: Graph) -> Graph:
    if graph.num_src != graph.num_dst:
        raise ValueError(
            f"reduce='gcn' needs a square graph, got {graph.num_src} source and {graph.num_dst} "
            "target nodes; use reduce='mean' or 'sum'"
        )
    return graph


def _weight(graph: Graph, values: Tensor) -> Tensor | None:
    weight = graph.weight
    if weight is None or weight.dtype == values.dtype:
        return weight
    if torch.is_autocast_enabled(values.device.type):
        return weight.to(accumulation_dtype(values.dtype))
    raise TypeError(
        f"features and edge weights must share one dtype, got {values.dtype} and {weight.dtype}; "
        f"call .to(...) on one of them"
    )
