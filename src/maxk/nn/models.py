"""The networks of MaxK-GNN, and with ``nonlinearity="relu"`` their baselines.

    Linear -> num_layers x [ (Linear) -> MaxK -> dropout -> aggregate -> norm ] -> Linear

GraphSAGE multiplies after the aggregation, a weight for the neighbours and one for the node itself;
GCN and GIN multiply before MaxK, and put a ReLU behind the first linear layer. With ``residual``
the input of a layer, before the norm, is added to its result, as the ``res+`` blocks of `DeeperGCN
<https://arxiv.org/abs/2006.07739>`_ do; the norm of the last layer then follows all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from maxk.cbsr import CBSR
from maxk.graph.graph import Graph
from maxk.nn.children import apply_linear
from maxk.nn.conv import SAGEConv
from maxk.nn.functional import add_scaled, check_caller, dropout
from maxk.nn.nonlinearities import Activation, Nonlinearity
from maxk.ops.aggregate import aggregate

Norm = Literal["layer", "batch"] | None
NORMS = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d}


class _Network(nn.Module):
    """What the three networks share; a child says what happens before and after MaxK."""

    relu_after_input = True

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int,
        k: int = 32,
        nonlinearity: Nonlinearity = "maxk",
        dropout: float = 0.0,
        norm: Norm = "layer",
        groups: int = 1,
        threshold: float | None = None,
        residual: bool = False,
    ) -> None:
        super().__init__()
        if norm is not None and norm not in NORMS:
            raise ValueError(f"norm must be 'layer', 'batch' or None, got {norm!r}")
        if num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {num_layers}")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
        self.k, self.nonlinearity, self.dropout = k, nonlinearity, dropout
        self.residual = residual
        self.activation = Activation(
            nonlinearity, hidden_channels, k, groups=groups, threshold=threshold
        )
        self.lin_in = nn.Linear(in_channels, hidden_channels)
        self.layers = nn.ModuleList(self.make_layer(hidden_channels) for _ in range(num_layers))
        self.norms = nn.ModuleList(
            nn.Identity() if norm is None else NORMS[norm](hidden_channels)
            for _ in range(num_layers)
        )
        self.lin_out = nn.Linear(hidden_channels, out_channels)

    def make_layer(self, width: int) -> nn.Module:
        """The trainable part of one layer."""
        raise NotImplementedError

    def propagate(self, layer: nn.Module, norm: nn.Module, h: Tensor, graph: Graph) -> Tensor:
        """The norm of the layer before, and one layer without its own."""
        raise NotImplementedError

    def activate(self, h: Tensor, norm: nn.Module | None = None) -> CBSR | Tensor:
        """Norm, nonlinearity and dropout: CBSR for MaxK, dense for ReLU."""
        return dropout(self.activation(h, norm), self.dropout, self.training)

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        """Logits [N, out_channels] of features [N, in_channels], dense or sparse CSR."""
        check_caller(self)
        h = apply_linear(self.lin_in, x)
        if self.relu_after_input:
            h = h.relu()
        norm: nn.Module = nn.Identity()
        for layer, own_norm in zip(self.layers, self.norms, strict=True):
            # A norm waits for the next layer, whose MaxK may do both in one pass.
            y = self.propagate(layer, norm, h, graph)
            h = h + y if self.residual else y
            norm = own_norm
        logits: Tensor = self.lin_out(norm(h))
        return logits


class GraphSAGE(_Network):
    """GraphSAGE with mean aggregation.

    Args:
        in_channels: width of the input features.
        hidden_channels: D, width of every hidden layer.
        num_layers: number of aggregations.
        out_channels: number of classes or tasks.
        k: entries that MaxK keeps of each hidden row.
        nonlinearity: "maxk", "relu" for the baseline, or another of
            :data:`maxk.nn.nonlinearities.NONLINEARITIES`.
        dropout: probability; with MaxK it acts on the k stored values.
        norm: "layer", "batch" or None, after every aggregation.
        groups: of "maxk-grouped".
        threshold: of "fatrelu"; by default it follows k.
        residual: add each layer's input to its result.

    Example:
        >>> import torch, maxk
        >>> graph = maxk.Graph.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 0]]))
        >>> model = maxk.nn.GraphSAGE(4, 8, 2, 3, k=2)
        >>> model(torch.randn(3, 4), graph).shape
        torch.Size([3, 3])
    """

    relu_after_input = False

    def make_layer(self, width: int) -> nn.Module:
        """Neighbour and self weights."""
        return SAGEConv(width, width)

    def propagate(self, layer: nn.Module, norm: nn.Module, h: Tensor, graph: Graph) -> Tensor:
        """MaxK, dropout, convolution."""
        y: Tensor = layer(self.activate(h, norm), graph)
        return y


class GCN(_Network):
    """Graph convolutional network; arguments as in :class:`GraphSAGE`."""

    def make_layer(self, width: int) -> nn.Module:
        """The weight before MaxK."""
        return nn.Linear(width, width)

    def propagate(self, layer: nn.Module, norm: nn.Module, h: Tensor, graph: Graph) -> Tensor:
        """Linear, MaxK, dropout, normalised sum."""
        return aggregate(graph, self.activate(layer(norm(h))), "gcn")


class GIN(_Network):
    """Graph isomorphism network with a trainable epsilon; arguments as in :class:`GraphSAGE`."""

    def make_layer(self, width: int) -> nn.Module:
        """The weight before MaxK, and epsilon."""
        return _GINLayer(width)

    def propagate(self, layer: nn.Module, norm: nn.Module, h: Tensor, graph: Graph) -> Tensor:
        """Linear, MaxK, dropout, sum with the node itself."""
        y: Tensor = layer(norm(h), graph, self.activate)
        return y


class _GINLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.lin = nn.Linear(width, width)
        self.eps = nn.Parameter(torch.zeros(1))

    def forward(
        self, h: Tensor, graph: Graph, activate: Callable[[Tensor], CBSR | Tensor]
    ) -> Tensor:
        kept = activate(self.lin(h))
        return add_scaled(aggregate(graph, kept, "sum"), kept, 1 + self.eps)


#: The networks by the name that settings and run folders give them.
MODELS: dict[str, type[GraphSAGE] | type[GCN] | type[GIN]] = {
    "sage": GraphSAGE,
    "gcn": GCN,
    "gin": GIN,
}
