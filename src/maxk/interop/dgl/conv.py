"""Layers with DGL's arguments, parameter names and calling order ``conv(graph, feat)``.

Each takes dense features or CBSR, and a ``DGLGraph``, a block of a sampler, or a
:class:`~maxk.graph.graph.Graph`. A ``DGLGraph`` is converted once and compared on every call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from maxk.cbsr import CBSR
from maxk.graph.graph import Graph
from maxk.interop.dgl.graph import graph_of
from maxk.nn.children import add_applied
from maxk.nn.conv import Features, Pair
from maxk.nn.functional import add_scaled, check_caller, dense, dropout
from maxk.ops.aggregate import aggregate

Activation = Callable[[Tensor], Tensor] | None


def _ends(graph: Graph, feat: Features | Pair) -> tuple[Features, Features]:
    """Features of sources and targets; the targets of a block are its first sources."""
    if isinstance(feat, tuple):
        source, target = feat
        return source, source if target is None else target
    if graph.num_src == graph.num_dst:
        return feat, feat
    count = graph.num_dst
    if isinstance(feat, CBSR):
        return feat, CBSR(feat.values[:count], feat.columns[:count], feat.width, in_range=True)
    return feat, feat[:count]


def _scaled(x: Features, scale: Tensor) -> Features:
    """Rows times a scale [N] each."""
    if isinstance(x, CBSR):
        return x.with_values(x.values * scale.to(x.dtype)[:, None])
    return x * scale.to(x.dtype)[:, None]


class SAGEConv(nn.Module):
    r"""GraphSAGE convolution as ``dgl.nn.SAGEConv``.

    .. math:: y_t = W_{self}\, h_t + b + W_{neigh} \operatorname{mean}_{s \to t} w\, h_s

    and for "gcn" :math:`W_{neigh} (h_t + \sum_{s \to t} w\, h_s) / (d_t + 1) + b`.

    Args:
        in_feats: D, or (D of sources, D of targets).
        out_feats: width of the result.
        aggregator_type: "mean" or "gcn".
        feat_drop: dropout of the input; with CBSR it acts on the stored values.
        bias: learn a bias.
        norm: applied to the result, last.
        activation: applied to the result.

    Shape:
        feat [N, D] dense or CBSR, or a pair; edge_weight [E]; result [M, out_feats].
    """

    def __init__(
        self,
        in_feats: int | tuple[int, int],
        out_feats: int,
        aggregator_type: Literal["mean", "gcn"],
        feat_drop: float = 0.0,
        bias: bool = True,
        norm: Activation = None,
        activation: Activation = None,
    ) -> None:
        super().__init__()
        if aggregator_type not in ("mean", "gcn"):
            raise ValueError(f"aggregator_type must be 'mean' or 'gcn', got {aggregator_type!r}")
        source, target = in_feats if isinstance(in_feats, tuple) else (in_feats, in_feats)
        self.aggregator_type, self.feat_drop = aggregator_type, feat_drop
        self.norm, self.activation = norm, activation
        self.fc_neigh = nn.Linear(source, out_feats, bias=False)
        if aggregator_type == "mean":
            self.fc_self = nn.Linear(target, out_feats, bias=bias)
        elif bias:
            self.bias = nn.Parameter(torch.zeros(out_feats))
        else:
            self.register_buffer("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weights anew: Glorot with ReLU's gain, as DGL does."""
        gain = nn.init.calculate_gain("relu")
        nn.init.xavier_uniform_(self.fc_neigh.weight, gain=gain)
        if self.aggregator_type == "mean":
            nn.init.xavier_uniform_(self.fc_self.weight, gain=gain)

    def _drop(self, feat: Features | Pair) -> Features | Pair:
        if isinstance(feat, tuple):
            source, target = feat
            dropped = None if target is None else dropout(target, self.feat_drop, self.training)
            return dropout(source, self.feat_drop, self.training), dropped
        return dropout(feat, self.feat_drop, self.training)

    def forward(
        self, graph: Any, feat: Features | Pair, edge_weight: Tensor | None = None
    ) -> Tensor:
        """Applies the convolution."""
        check_caller(self)
        graph = graph_of(graph, edge_weight)
        source, target = _ends(graph, self._drop(feat))
        if self.aggregator_type == "mean":
            y: Tensor = self.fc_neigh(aggregate(graph, source, "mean"))
            y = add_applied(y, self.fc_neigh, self.fc_self, target)
        else:
            y = aggregate(graph, source, "sum") + dense(target)
            y = self.fc_neigh(y / (graph.in_degrees() + 1).to(y.dtype)[:, None])
            y = y if self.bias is None else y + self.bias
        y = y if self.activation is None else self.activation(y)
        return y if self.norm is None else self.norm(y)


class GraphConv(nn.Module):
    r"""Graph convolution as ``dgl.nn.GraphConv``; no self-loops are added.

    .. math:: y_t = r_t \sum_{s \to t} w\, c_s\, h_s W + b

    with r, c the inverse square roots of in- and out-degree for norm="both", 1 / in-degree and 1
    for "right", 1 and 1 / out-degree for "left", 1 for "none". Degrees count edges and are at
    least 1.

    Args:
        in_feats: D.
        out_feats: width of the result.
        norm: "both", "right", "left" or "none".
        weight: learn W.
        bias: learn b.
        activation: applied to the result.
        allow_zero_in_degree: give b to nodes without in-edges; False refuses them, as DGL does.

    Shape:
        feat [N, D] dense or CBSR, or a pair whose first is used; edge_weight [E]; result
        [M, out_feats].
    """

    def __init__(
        self,
        in_feats: int,
        out_feats: int,
        norm: Literal["both", "right", "left", "none"] = "both",
        weight: bool = True,
        bias: bool = True,
        activation: Activation = None,
        allow_zero_in_degree: bool = True,
    ) -> None:
        super().__init__()
        if norm not in ("both", "right", "left", "none"):
            raise ValueError(f"norm must be 'both', 'right', 'left' or 'none', got {norm!r}")
        self.norm, self.activation = norm, activation
        self.allow_zero_in_degree = allow_zero_in_degree
        self.weight = nn.Parameter(torch.empty(in_feats, out_feats)) if weight else None
        self.bias = nn.Parameter(torch.empty(out_feats)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the parameters anew: Glorot for W, 0 for b."""
        if self.weight is not None:
            nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self,
        graph: Any,
        feat: Features | Pair,
        weight: Tensor | None = None,
        edge_weight: Tensor | None = None,
    ) -> Tensor:
        """Applies the convolution; ``weight`` is W for a layer made with weight=False."""
        check_caller(self)
        if weight is not None and self.weight is not None:
            raise ValueError("the layer has a weight of its own; make it with weight=False")
        weight = self.weight if weight is None else weight
        graph = graph_of(graph, edge_weight)
        in_degrees = graph.in_degrees()
        if not self.allow_zero_in_degree and bool((in_degrees == 0).any()):
            count = int((in_degrees == 0).sum())
            raise ValueError(
                f"{count} nodes have no in-edges and would get 0; add self-loops, or pass "
                "allow_zero_in_degree=True"
            )
        x = feat[0] if isinstance(feat, tuple) else feat
        if self.norm in ("both", "left"):
            degrees = graph.adjacency("sum", torch.float32).t_indptr.diff().clamp(min=1)
            x = _scaled(x, degrees.double() ** (-0.5 if self.norm == "both" else -1.0))
        reduce = "mean" if self.norm == "right" else "sum"
        if weight is None:
            y = aggregate(graph, x, reduce)
        elif isinstance(x, CBSR) or weight.shape[0] <= weight.shape[1]:
            y = aggregate(graph, x, reduce) @ weight
        else:
            y = aggregate(graph, x @ weight, reduce)
        if self.norm == "both":
            y = y * in_degrees.clamp(min=1).double().rsqrt().to(y.dtype)[:, None]
        y = y if self.bias is None else y + self.bias
        return y if self.activation is None else self.activation(y)


class GINConv(nn.Module):
    r"""Graph isomorphism convolution as ``dgl.nn.GINConv``.

    .. math:: y_t = f\Big((1 + \epsilon)\, h_t + \sum_{s \to t} w\, h_s\Big)

    Args:
        apply_func: f, or None.
        aggregator_type: "sum" or "mean".
        init_eps: initial epsilon.
        learn_eps: learn epsilon.
        activation: applied to the result.

    Shape:
        feat [N, D] dense or CBSR, or a pair; edge_weight [E]; result whatever f makes of [M, D].
    """

    eps: Tensor

    def __init__(
        self,
        apply_func: nn.Module | None = None,
        aggregator_type: Literal["sum", "mean"] = "sum",
        init_eps: float = 0.0,
        learn_eps: bool = False,
        activation: Activation = None,
    ) -> None:
        super().__init__()
        if aggregator_type not in ("sum", "mean"):
            raise ValueError(f"aggregator_type must be 'sum' or 'mean', got {aggregator_type!r}")
        self.apply_func, self.activation = apply_func, activation
        self.aggregator_type = aggregator_type
        eps = torch.tensor([float(init_eps)])
        if learn_eps:
            self.eps = nn.Parameter(eps)
        else:
            self.register_buffer("eps", eps)

    def forward(
        self, graph: Any, feat: Features | Pair, edge_weight: Tensor | None = None
    ) -> Tensor:
        """Applies the convolution."""
        check_caller(self)
        graph = graph_of(graph, edge_weight)
        source, target = _ends(graph, feat)
        y = add_scaled(aggregate(graph, source, self.aggregator_type), target, 1 + self.eps)
        y = y if self.apply_func is None else self.apply_func(y)
        return y if self.activation is None else self.activation(y)
