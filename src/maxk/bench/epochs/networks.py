"""The same network with other people's layers: what an epoch is compared with.

Each function takes one of :mod:`maxk.nn`'s networks and returns a module with the same parameters
and, dropout aside, the same function, in which aggregation and nonlinearity are somebody else's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maxk.bench.kernels.gate import csr_tensor
from maxk.bench.models import MODELS, Network
from maxk.graph.graph import Graph
from maxk.nn.functional import linear
from maxk.nn.models import GCN, GraphSAGE
from maxk.ops.aggregate import aggregate

Product = Callable[[Tensor], Tensor]

#: How each network aggregates.
REDUCE = {model.network: model.reduce for model in MODELS.values()}


class Plain(nn.Module):
    """A network of this package with its own parameters and a product given from outside.

    Args:
        network: Whose parameters are copied.
        product: Aggregates dense [N, D] features.
        activation: ``relu``, or MaxK through a dense mask.
    """

    def __init__(self, network: Network, product: Product, activation: Product) -> None:
        super().__init__()
        self.network = copy.deepcopy(network)
        self.product, self.activation = product, activation

    def activate(self, h: Tensor) -> Tensor:
        """Nonlinearity and dropout."""
        return F.dropout(self.activation(h), self.network.dropout, self.training)

    def propagate(self, layer: Any, h: Tensor) -> Tensor:
        """One layer without its norm."""
        if isinstance(self.network, GraphSAGE):
            kept = self.activate(h)
            y: Tensor = layer.lin_l(self.product(kept)) + layer.lin_r(kept)
            return y
        if isinstance(self.network, GCN):
            return self.product(self.activate(layer(h)))
        kept = self.activate(layer.lin(h))
        own: Tensor = (1 + layer.eps) * kept
        return self.product(kept) + own

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C]."""
        net = self.network
        h = linear(x, net.lin_in.weight, net.lin_in.bias)
        if net.relu_after_input:
            h = h.relu()
        for layer, norm in zip(net.layers, net.norms, strict=True):
            h = norm(self.propagate(layer, h))
        logits: Tensor = net.lin_out(h)
        return logits


class _Mask(torch.autograd.Function):
    """MaxK as the published training code has it: a dense 0/1 mask, kept for backward."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, k: int) -> Tensor:
        columns = torch.topk(h, k, dim=1).indices
        mask: Tensor = torch.zeros_like(h).scatter_(1, columns, 1.0)
        ctx.save_for_backward(mask)
        return h * mask

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return grads[0] * mask, None


def mask_activation(k: int) -> Product:
    """Returns MaxK by ``torch.topk`` and a dense mask."""

    def activation(h: Tensor) -> Tensor:
        out: Tensor = _Mask.apply(h, k)  # type: ignore[no-untyped-call]
        return out

    return activation


class _Sparse(torch.autograd.Function):
    """``A h`` and ``Aᵀ g`` by torch.sparse on two cached matrices."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, matrix: Tensor, transposed: Tensor) -> Tensor:
        ctx.transposed = transposed
        out: Tensor = torch.sparse.mm(matrix, h)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return torch.sparse.mm(ctx.transposed, grads[0].contiguous()), None, None


def sparse_product(graph: Graph, reduce: str, dtype: torch.dtype) -> Product:
    """Returns aggregation by torch.sparse in one dtype, matrix and transpose cached."""
    if reduce == "gcn":
        graph = graph.with_self_loops()
    a = graph.adjacency(reduce, dtype)
    values = a.entries(graph.weight, dtype).detach()
    matrix = csr_tensor(a.indptr, a.indices, values, a.num_src)
    transposed = csr_tensor(a.t_indptr, a.t_indices, values[a.t_edges], a.num_dst)

    def product(h: Tensor) -> Tensor:
        out: Tensor = _Sparse.apply(h, matrix, transposed)  # type: ignore[no-untyped-call]
        return out

    return product


def dense_product(graph: Graph, reduce: str) -> Product:
    """Returns this package's dense aggregation."""
    return lambda h: aggregate(graph, h, reduce)


def topk_mask(network: Network, graph: Graph, k: int) -> Plain:
    """Returns the published recipe: ``torch.topk``, a dense mask, dense aggregation.

    The aggregation is our dense one, which is faster than the one that recipe uses.
    """
    return Plain(network, dense_product(graph, REDUCE[type(network)]), mask_activation(k))


class _PyG(Plain):
    """PyG's layers: ``SAGEConv``, ``LGConv`` (the normalised sum alone) and ``GINConv``."""

    def __init__(self, network: Network, graph: Graph) -> None:
        from torch_geometric.nn import GINConv, LGConv, SAGEConv

        super().__init__(network, lambda h: h, torch.relu)
        net: Any = self.network
        width = net.lin_in.out_features
        reduce = REDUCE[type(network)]
        whole = graph.with_self_loops() if reduce == "gcn" else graph
        # PyG's layers take the mean and the sum themselves; the normalisation is cached for it.
        a = whole.adjacency("gcn" if reduce == "gcn" else "sum", torch.float32)
        values = a.entries(whole.weight, torch.float32).detach()
        self.matrix = csr_tensor(a.indptr, a.indices, values, a.num_src)
        if isinstance(net, GraphSAGE):
            convs = [SAGEConv(width, width) for _ in net.layers]
            for conv, layer in zip(convs, net.layers, strict=True):
                conv.load_state_dict(layer.state_dict())
            net.layers = nn.ModuleList(convs)
        elif isinstance(net, GCN):
            self.conv = LGConv(normalize=False)
        else:
            self.convs = nn.ModuleList(GINConv(nn.Identity(), train_eps=True) for _ in net.layers)
            for conv, layer in zip(self.convs, net.layers, strict=True):
                layer.eps = conv.eps

    def propagate(self, layer: Any, h: Tensor) -> Tensor:
        y: Tensor
        if isinstance(self.network, GraphSAGE):
            y = layer(self.activate(h), self.matrix)
        elif isinstance(self.network, GCN):
            y = self.conv(self.activate(layer(h)), self.matrix)
        else:
            place = list(self.network.layers).index(layer)
            y = self.convs[place](self.activate(layer.lin(h)), self.matrix)
        return y


def pyg(network: Network, graph: Graph) -> nn.Module:
    """Returns the network in PyG's layers on a CSR adjacency, what a PyG user has today."""
    return _PyG(network, graph).to(graph.device)


class _DGL(Plain):
    """DGL's layers: ``SAGEConv``, ``GraphConv`` without weight, and ``GINConv``."""

    def __init__(self, network: Network, graph: Graph) -> None:
        import dgl
        from dgl.nn import GINConv, GraphConv, SAGEConv

        super().__init__(network, lambda h: h, torch.relu)
        net: Any = self.network
        width = net.lin_in.out_features
        whole = graph.with_self_loops() if isinstance(net, GCN) else graph
        source, target = whole.edge_index()
        self.blocks = dgl.graph((source, target), num_nodes=whole.num_src)
        if isinstance(net, GraphSAGE):
            convs = [SAGEConv(width, width, "mean") for _ in net.layers]
            layer: Any
            for conv, layer in zip(convs, net.layers, strict=True):
                conv.fc_neigh.weight.data.copy_(layer.lin_l.weight.data)
                conv.fc_self.weight.data.copy_(layer.lin_r.weight.data)
                conv.fc_self.bias.data.copy_(layer.lin_l.bias.data)
            net.layers = nn.ModuleList(convs)
        elif isinstance(net, GCN):
            self.conv = GraphConv(width, width, norm="both", weight=False, bias=False)
        else:
            self.convs = nn.ModuleList(GINConv(None, "sum", learn_eps=True) for _ in net.layers)
            for conv, layer in zip(self.convs, net.layers, strict=True):
                layer.eps = conv.eps

    def propagate(self, layer: Any, h: Tensor) -> Tensor:
        y: Tensor
        if isinstance(self.network, GraphSAGE):
            y = layer(self.blocks, self.activate(h))
        elif isinstance(self.network, GCN):
            y = self.conv(self.blocks, self.activate(layer(h)))
        else:
            place = list(self.network.layers).index(layer)
            y = self.convs[place](self.blocks, self.activate(layer.lin(h)))
        return y


def dgl(network: Network, graph: Graph) -> nn.Module:
    """Returns the network in DGL's layers."""
    return _DGL(network, graph).to(graph.device)
