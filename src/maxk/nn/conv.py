"""Graph convolutions with PyG's arguments, parameter names and results.

Each takes dense features or CBSR, and a graph in any of these forms: a
:class:`~maxk.graph.graph.Graph`; an ``edge_index`` [2, E] (source, target), plain or PyG's
``EdgeIndex``; or an ``adj_t`` [M, N] (rows targets), torch sparse or ``torch_sparse.SparseTensor``,
whose values are edge weights. All but the first are converted once and compared on every call.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maxk.cbsr import CBSR
from maxk.graph.cache import graph_of
from maxk.graph.graph import Graph
from maxk.nn.children import add_applied
from maxk.nn.functional import add_scaled, dense, refuse_replica
from maxk.ops.aggregate import aggregate

Features = CBSR | Tensor
Pair = tuple[Features, Features | None]
Size = tuple[int | None, int | None] | None


def _reduce_of(aggr: str) -> str:
    if aggr not in ("mean", "sum", "add"):
        raise ValueError(f"aggr must be 'mean', 'sum' or 'add', got {aggr!r}")
    return "sum" if aggr == "add" else aggr


def _rows(x: Features) -> int:
    return x.num_rows if isinstance(x, CBSR) else x.shape[0]


def ends(x: Features | Pair) -> Pair:
    """Features of the sources and the targets."""
    return x if isinstance(x, tuple) else (x, x)


def edge_counts(x: Features | Pair, size: Size) -> tuple[int, int]:
    """(num_src, num_dst) of an edge list between these features."""
    source, target = ends(x)
    num_src, num_dst = size or (None, None)
    if num_src is None:
        num_src = _rows(source)
    if num_dst is None:
        num_dst = num_src if target is None else _rows(target)
    return num_src, num_dst


class SAGEConv(nn.Module):
    r"""GraphSAGE convolution (`Hamilton et al. <https://arxiv.org/abs/1706.02216>`_).

    .. math:: x'_t = W_l \operatorname{mean}_{s \to t} x_s + b_l + W_r x_t

    Args:
        in_channels: D, or a pair (source, target) for a bipartite graph.
        out_channels: width of the result.
        aggr: "mean" or "sum" ("add").
        normalize: scale every row of the result to length 1.
        root_weight: add the term of the node itself.
        project: apply a linear layer and ReLU to dense source features first.
        bias: learn an additive bias.

    Shape:
        x [N, D] dense or CBSR, or a pair (x_src, x_dst), of which x_dst may be None; result
        [M, out_channels]. ``size`` is (N, M) for an edge list between sides that features do not
        tell.
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: str = "mean",
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        source, target = (in_channels, in_channels) if isinstance(in_channels, int) else in_channels
        self.in_channels, self.out_channels = in_channels, out_channels
        self.aggr, self.normalize = aggr, normalize
        self.root_weight, self.project = root_weight, project
        self.reduce = _reduce_of(aggr)
        if project:
            self.lin = nn.Linear(source, source)
        self.lin_l = nn.Linear(source, out_channels, bias=bias)
        if root_weight:
            self.lin_r = nn.Linear(target, out_channels, bias=False)

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        for layer in self.children():
            cast(nn.Linear, layer).reset_parameters()

    def forward(self, x: Features | Pair, graph: Any, size: Size = None) -> Tensor:
        """Applies the convolution."""
        refuse_replica(self)
        source, target = ends(x)
        graph = graph_of(graph, edge_counts(x, size))
        if self.project:
            source = F.relu(self.lin(dense(source)))
        y: Tensor = self.lin_l(aggregate(graph, source, self.reduce))
        if self.root_weight and target is not None:
            y = add_applied(y, self.lin_l, self.lin_r, target)
        return F.normalize(y, p=2.0, dim=-1) if self.normalize else y

    def extra_repr(self) -> str:
        """The arguments, for printing a model."""
        return f"{self.in_channels}, {self.out_channels}, aggr={self.aggr!r}"


class GCNConv(nn.Module):
    r"""Graph convolution (`Kipf and Welling <https://arxiv.org/abs/1609.02907>`_).

    .. math:: X' = D^{-1/2} (A + I) D^{-1/2} X W + b

    Only missing self-loops are added. CBSR features are aggregated first and multiplied by W after,
    dense ones the other way round, as PyG does; the product is the same.

    Args:
        in_channels: D.
        out_channels: width of the result.
        add_self_loops: fill missing self-loops.
        normalize: apply the symmetric normalisation.
        bias: learn an additive bias.

    Shape:
        x [N, D] dense or CBSR; result [N, out_channels]. ``edge_weight`` [E] belongs to an
        ``edge_index`` and follows its order.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if add_self_loops is None:
            add_self_loops = normalize
        if add_self_loops and not normalize:
            raise ValueError(
                "add_self_loops=True needs normalize=True, got normalize=False; "
                "call graph.with_self_loops() for a plain sum over filled loops"
            )
        self.in_channels, self.out_channels = in_channels, out_channels
        self.add_self_loops, self.normalize = add_self_loops, normalize
        self.lin = nn.Linear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters anew: Glorot for the weight, 0 for the bias."""
        nn.init.xavier_uniform_(self.lin.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Features, graph: Any, edge_weight: Tensor | None = None) -> Tensor:
        """Applies the convolution."""
        refuse_replica(self)
        graph = graph_of(graph, _rows(x), edge_weight)
        y: Tensor
        if isinstance(x, CBSR):
            y = self.lin(self._propagate(graph, x))
        else:
            y = self._propagate(graph, self.lin(x))
        return y if self.bias is None else y + self.bias

    def _propagate(self, graph: Graph, x: Features) -> Tensor:
        if not self.normalize:
            return aggregate(graph, x, "sum")
        return aggregate(graph, x, "gcn", fill_self_loops=self.add_self_loops)

    def extra_repr(self) -> str:
        """The arguments, for printing a model."""
        return f"{self.in_channels}, {self.out_channels}"


class GINConv(nn.Module):
    r"""Graph isomorphism convolution (`Xu et al. <https://arxiv.org/abs/1810.00826>`_).

    .. math:: x'_t = \operatorname{nn}\Big((1 + \epsilon)\, x_t + \sum_{s \to t} x_s\Big)

    Args:
        nn: module applied to the sum.
        eps: initial epsilon.
        train_eps: learn epsilon.

    Shape:
        x [N, D] dense or CBSR, or a pair (x_src, x_dst); result whatever ``nn`` makes of [M, D].
    """

    eps: Tensor

    def __init__(self, nn: nn.Module, eps: float = 0.0, train_eps: bool = False) -> None:
        super().__init__()
        self.nn = nn
        self.initial_eps = eps
        if train_eps:
            self.eps = torch.nn.Parameter(torch.tensor([eps]))
        else:
            self.register_buffer("eps", torch.tensor([eps]))

    def reset_parameters(self) -> None:
        """Draws the inner module's parameters anew and puts epsilon back."""
        for module in self.nn.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
        with torch.no_grad():
            self.eps.fill_(self.initial_eps)

    def forward(self, x: Features | Pair, graph: Any, size: Size = None) -> Tensor:
        """Applies the convolution."""
        refuse_replica(self)
        source, target = ends(x)
        y = aggregate(graph_of(graph, edge_counts(x, size)), source, "sum")
        if target is not None:
            y = add_scaled(y, target, 1 + self.eps)
        result: Tensor = self.nn(y)
        return result
