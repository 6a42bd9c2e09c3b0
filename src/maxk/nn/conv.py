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
from torch.fx import Proxy
from torch.nn import functional as F

from maxk.cbsr import CBSR
from maxk.graph.cache import graph_of
from maxk.graph.graph import Graph
from maxk.nn.children import add_applied
from maxk.nn.functional import add_scaled, check_caller, dense
from maxk.nn.lazy import is_lazy, make_linear
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
    if isinstance(x, tuple):
        return x
    return (x[0], x[1]) if isinstance(x, list) else (x, x)


def _check_options(layer: nn.Module, options: dict[str, Any]) -> None:
    """Sets on a layer what PyG's ``MessagePassing`` takes, where it has a meaning here.

    Raises:
        TypeError: an option is unknown.
        ValueError: an option has a value that changes the result.
    """
    kind = type(layer).__name__
    allowed: dict[str, tuple[object, ...]] = {
        "flow": ("source_to_target",),
        "node_dim": (-2, 0),
        "aggr_kwargs": (None, {}),
        "aggr": ("sum", "add"),
    }
    hints = {
        "flow": "pass edge_index.flip(0) or graph.transpose() to reverse the edges",
        "node_dim": "features are matrices of one row per node",
        "aggr_kwargs": "sum and mean have none",
        "aggr": "use maxk.nn.SAGEConv for the mean",
    }
    layers = options.pop("decomposed_layers", 1)
    if not isinstance(layers, int) or layers < 1:
        raise ValueError(f"decomposed_layers must be an int of at least 1, got {layers!r}")
    layer.decomposed_layers = layers  # type: ignore[assignment]
    for name, value in options.items():
        if name not in allowed:
            raise TypeError(f"{kind} has no argument {name!r}; see help(maxk.nn.{kind})")
        if value not in allowed[name]:
            wanted = " or ".join(map(repr, allowed[name]))
            raise ValueError(f"{name} of {kind} must be {wanted}, got {value!r}; {hints[name]}")
    layer.flow = "source_to_target"  # type: ignore[assignment]
    layer.node_dim = options.get("node_dim", -2)


def _pair(in_channels: Any) -> tuple[int, int]:
    """Widths of the sources and the targets."""
    if isinstance(in_channels, tuple | list):
        source, target = in_channels
        return source, target
    return in_channels, in_channels


class Convolution(nn.Module):
    """What the layers of this package share."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer; ``torch_geometric.nn.to_hetero`` would give it one type of edges."""
        x = args[0] if args else kwargs.get("x")
        if type(x) is Proxy and type(x.tracer).__module__.startswith("torch_geometric."):
            kind = type(self).__name__
            raise TypeError(
                f"maxk.nn.{kind} cannot go through to_hetero, which splits the layers of PyG by "
                f"edge type; build the model with PyG's {kind}, and call "
                "maxk.convert(to_hetero(model, metadata), k=...)"
            )
        return super().__call__(*args, **kwargs)


def edge_counts(x: Features | Pair, size: Size) -> tuple[int, int]:
    """(num_src, num_dst) of an edge list between these features."""
    source, target = ends(x)
    num_src, num_dst = size or (None, None)
    if num_src is None:
        num_src = _rows(source)
    if num_dst is None:
        num_dst = num_src if target is None else _rows(target)
    return num_src, num_dst


class SAGEConv(Convolution):
    r"""GraphSAGE convolution (`Hamilton et al. <https://arxiv.org/abs/1706.02216>`_).

    .. math:: x'_t = W_l \operatorname{mean}_{s \to t} x_s + b_l + W_r x_t

    Args:
        in_channels: D, or a pair (source, target) for a bipartite graph; -1 takes the width of the
            first input.
        out_channels: width of the result.
        aggr: "mean" or "sum" ("add").
        normalize: scale every row of the result to length 1.
        root_weight: add the term of the node itself.
        project: apply a linear layer and ReLU to dense source features first.
        bias: learn an additive bias.
        **kwargs: of PyG's ``MessagePassing``: ``flow`` and ``node_dim`` at their defaults,
            ``decomposed_layers``, which changes nothing since no message is stored.

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
        **kwargs: Any,
    ) -> None:
        super().__init__()
        source, target = _pair(in_channels)
        if project and source == -1:
            raise ValueError("project=True needs the width of the sources, got in_channels=-1")
        _check_options(self, kwargs)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.aggr, self.normalize = aggr, normalize
        self.root_weight, self.project = root_weight, project
        self.reduce = _reduce_of(aggr)
        if project:
            self.lin = nn.Linear(source, source)
        self.lin_l = make_linear(source, out_channels, bias=bias)
        if root_weight:
            self.lin_r = make_linear(target, out_channels, bias=False)

    def reset_parameters(self) -> None:
        """Draws all parameters again."""
        for layer in self.children():
            cast(nn.Linear, layer).reset_parameters()

    def forward(self, x: Features | Pair, edge_index: Any, size: Size = None) -> Tensor:
        """Applies the convolution."""
        check_caller(self)
        source, target = ends(x)
        graph = graph_of(edge_index, edge_counts(x, size))
        if self.project:
            source = F.relu(self.lin(dense(source)))
        y: Tensor = self.lin_l(aggregate(graph, source, self.reduce))
        if self.root_weight and target is not None:
            y = add_applied(y, self.lin_l, self.lin_r, target)
        return F.normalize(y, p=2.0, dim=-1) if self.normalize else y

    def extra_repr(self) -> str:
        """The arguments, for printing a model."""
        return f"{self.in_channels}, {self.out_channels}, aggr={self.aggr!r}"


class GCNConv(Convolution):
    r"""Graph convolution (`Kipf and Welling <https://arxiv.org/abs/1609.02907>`_).

    .. math:: X' = D^{-1/2} (A + I) D^{-1/2} X W + b

    Only missing self-loops are added. CBSR features are aggregated first and multiplied by W after,
    dense ones the other way round, as PyG does; the product is the same.

    Args:
        in_channels: D, or -1 for the width of the first input.
        out_channels: width of the result.
        improved: only False; PyG's True gives the added self-loops weight 2.
        cached: keep the graph and the weights of the first call for all later ones, whatever they
            bring; with normalize=True only, as in PyG.
        add_self_loops: fill missing self-loops; by default where ``normalize`` is True.
        normalize: apply the symmetric normalisation.
        bias: learn an additive bias.
        **kwargs: of PyG's ``MessagePassing``: ``aggr="add"``, ``flow`` and ``node_dim`` at their
            defaults, ``decomposed_layers``, which changes nothing since no message is stored.

    Shape:
        x [N, D] dense or CBSR; result [N, out_channels]. ``edge_weight`` [E] belongs to an
        ``edge_index`` and follows its order.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        improved: bool = False,
        cached: bool = False,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        _check_options(self, kwargs)
        if improved:
            raise ValueError(
                "improved must be False, got True; add the self-loops with weight 2 to edge_index "
                "and edge_weight and pass add_self_loops=False"
            )
        if add_self_loops is None:
            add_self_loops = normalize
        if add_self_loops and not normalize:
            raise ValueError(
                "add_self_loops=True needs normalize=True, got normalize=False; "
                "call graph.with_self_loops() for a plain sum over filled loops"
            )
        self.in_channels, self.out_channels = in_channels, out_channels
        self.improved, self.cached = improved, cached
        self.add_self_loops, self.normalize = add_self_loops, normalize
        self._cached_graph: Graph | None = None
        self.lin = make_linear(in_channels, out_channels, bias=False, glorot=True)
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters again: Glorot for the weight, 0 for the bias."""
        if not is_lazy(self.lin.weight):
            nn.init.xavier_uniform_(self.lin.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        self._cached_graph = None

    def forward(self, x: Features, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """Applies the convolution."""
        check_caller(self)
        if isinstance(x, tuple | list):
            raise ValueError(
                "x of GCNConv must be one matrix, got a pair; use maxk.nn.SAGEConv on a bipartite "
                "graph"
            )
        graph = self._cached_graph
        if graph is None:
            graph = graph_of(edge_index, _rows(x), edge_weight)
            if self.cached and self.normalize:
                self._cached_graph = graph
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


class GINConv(Convolution):
    r"""Graph isomorphism convolution (`Xu et al. <https://arxiv.org/abs/1810.00826>`_).

    .. math:: x'_t = \operatorname{nn}\Big((1 + \epsilon)\, x_t + \sum_{s \to t} x_s\Big)

    Args:
        nn: module applied to the sum.
        eps: initial epsilon.
        train_eps: learn epsilon.
        **kwargs: of PyG's ``MessagePassing``: ``aggr="add"``, ``flow`` and ``node_dim`` at their
            defaults, ``decomposed_layers``, which changes nothing since no message is stored.

    Shape:
        x [N, D] dense or CBSR, or a pair (x_src, x_dst); result whatever ``nn`` makes of [M, D].
    """

    eps: Tensor

    def __init__(
        self, nn: nn.Module, eps: float = 0.0, train_eps: bool = False, **kwargs: Any
    ) -> None:
        super().__init__()
        _check_options(self, kwargs)
        self.nn = nn
        self.initial_eps = eps
        if train_eps:
            self.eps = torch.nn.Parameter(torch.tensor([eps]))
        else:
            self.register_buffer("eps", torch.tensor([eps]))

    def reset_parameters(self) -> None:
        """Draws the inner module's parameters again and puts epsilon back."""
        for module in self.nn.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
        with torch.no_grad():
            self.eps.fill_(self.initial_eps)

    def forward(self, x: Features | Pair, edge_index: Any, size: Size = None) -> Tensor:
        """Applies the convolution."""
        check_caller(self)
        source, target = ends(x)
        y = aggregate(graph_of(edge_index, edge_counts(x, size)), source, "sum")
        if target is not None:
            y = add_scaled(y, target, 1 + self.eps)
        result: Tensor = self.nn(y)
        return result
