"""Our aggregation in a ``MessagePassing`` layer of one's own."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor

from maxk.cbsr import CBSR
from maxk.graph.cache import graph_of
from maxk.graph.graph import Graph
from maxk.interop.message_source import Message, message_of
from maxk.nn.children import has_hooks
from maxk.nn.conv import Features, Pair, Size, edge_counts, ends
from maxk.nn.functional import dense
from maxk.ops.aggregate import aggregate


def propagate(
    edge_index: Any,
    x: Features | Pair,
    aggr: str = "sum",
    *,
    edge_weight: Tensor | None = None,
    size: Size = None,
) -> Tensor:
    """What PyG's ``propagate`` gives for the message ``x_j`` or ``edge_weight * x_j``, fused.

    Messages are never stored, and CBSR features take SpGEMM. In PyG's hook for fused layers::

        def message_and_aggregate(self, adj_t, x):
            return maxk.interop.propagate(adj_t, x, self.aggr)

    which PyG calls for an ``adj_t`` only; :class:`FusedMessage` serves an ``edge_index`` too.

    Args:
        edge_index: ``edge_index``, ``EdgeIndex``, ``adj_t`` (whose values are weights) or a
            :class:`~maxk.graph.graph.Graph`.
        x: [N, D] dense or CBSR, or a pair (x_src, x_dst).
        aggr: "sum", "add" or "mean".
        edge_weight: [E] in the order of ``edge_index``.
        size: (N, M) of an edge list between sides that features do not tell.

    Returns:
        [M, D].

    Raises:
        ValueError: ``aggr`` is another one.

    Example:
        >>> import torch, maxk
        >>> maxk.interop.propagate(torch.tensor([[0, 1], [2, 2]]), torch.eye(3))[2]
        tensor([1., 1., 0.])
    """
    if aggr not in ("sum", "add", "mean"):
        raise ValueError(f"aggr must be 'sum', 'add' or 'mean', got {aggr!r}")
    graph = graph_of(edge_index, edge_counts(x, size), edge_weight)
    return aggregate(graph, ends(x)[0], "mean" if aggr == "mean" else "sum")


class FusedMessage:
    """Makes ``propagate`` of a PyG layer our fused aggregation: name it before ``MessagePassing``.

    The fused aggregation replaces ``message`` and ``aggregate`` where it is proven to compute the
    same: the source of ``message`` is ``return x_j``, or ``return edge_weight.view(-1, 1) * x_j``
    or an equal form (``unsqueeze``, ``[:, None]``, either order, ``x_j if edge_weight is None else
    ...``), and ``aggr`` is "sum", "add" or "mean". There x may be CBSR, any kind of ``edge_index``
    or ``adj_t`` or a Graph is taken, and no message is stored.

    Everything else runs as PyG runs it, with CBSR features expanded: any other message, a class or
    an object with its own ``aggregate``, registered hooks, ``flow="target_to_source"``, another
    ``aggr``, ``decomposed_layers``, explanations, and a ``message_and_aggregate`` for an ``adj_t``.
    :meth:`unfused_reason` says what keeps a layer from the fused aggregation.

    Attributes:
        message_is: "x_j" or "edge_weight * x_j", set in a class whose ``message`` computes that in
            a way that its source does not show. It counts until a subclass overrides ``message``.

    Raises:
        ValueError: when a class is made, where ``message_is`` is another text.

    Example:
        >>> import torch, maxk
        >>> from torch_geometric.nn import MessagePassing
        >>> class Conv(maxk.interop.FusedMessage, MessagePassing):
        ...     def forward(self, x, edge_index):
        ...         return self.propagate(edge_index, x=x)
        >>> Conv(aggr="sum")(maxk.maxk(torch.eye(3), k=1), torch.tensor([[0, 1], [2, 2]]))[2]
        tensor([1., 1., 0.])
    """

    message_is: ClassVar[Literal["x_j", "edge_weight * x_j"] | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.message_is not in (None, "x_j", "edge_weight * x_j"):
            raise ValueError(
                f"message_is of {cls.__name__} must be 'x_j' or 'edge_weight * x_j', got "
                f"{cls.message_is!r}"
            )
        # PyG compiles a propagate of its own into every class that does not define one.
        cls.propagate = _handwritten(cls, "propagate") or _propagate  # type: ignore[attr-defined]

    def unfused_reason(self) -> str | None:
        """Why this layer runs unfused, in one sentence; None where it runs fused.

        Its inputs can be a reason too: features that are no floating-point matrix, or weights of
        another dtype than the features.
        """
        if type(self).propagate is not _propagate:  # type: ignore[attr-defined]
            return f"{type(self).__name__} has its own propagate"
        return _reason(self, message_of(type(self)))


def _propagate(layer: Any, edge_index: Any, size: Any = None, **arguments: Any) -> Tensor:
    """``propagate`` of a layer with :class:`FusedMessage`."""
    message = message_of(type(layer))
    if _reason(layer, message) is None and message is not None:
        x = arguments.get(message.features)
        pair: Any = tuple(x) if isinstance(x, list) else x
        graph = _graph(layer, message, pair, edge_index, size, arguments)
        if graph is not None:
            y = aggregate(graph, ends(pair)[0], "mean" if layer.aggr == "mean" else "sum")
            return _update(layer, y, arguments)
    return _unfused(layer, edge_index, size, arguments)


def _reason(layer: Any, message: Message | None) -> str | None:
    """What about a layer, apart from its inputs, forbids the fused aggregation."""
    cls, own = type(layer), vars(layer)
    name = cls.__name__
    if message is None:
        return (
            f"the message of {name} is not shown by its source to be x_j or edge_weight * x_j; "
            "set message_is in the class where it is"
        )
    pyg: Any = sys.modules["torch_geometric.nn"]
    base = pyg.MessagePassing
    if cls.aggregate is not base.aggregate:
        return f"{name} has its own aggregate"
    if changed := [part for part in ("message", "aggregate", "update") if part in own]:
        return f"an object of {name} has its own {changed[0]}"
    if not _update_names(cls.update)[1]:
        return f"update of {name} asks for more than the arguments of propagate"
    if layer.aggr not in ("sum", "add", "mean") or type(layer.aggr_module) not in (
        pyg.SumAggregation, pyg.MeanAggregation,
    ):  # fmt: skip
        return f"aggr of {name} is {layer.aggr!r}, not 'sum', 'add' or 'mean'"
    if layer.flow != "source_to_target":
        return f"flow of {name} is {layer.flow!r}"
    if layer.explain:
        return f"{name} is being explained, which needs its messages"
    if layer.decomposed_layers != 1:
        return f"{name} has decomposed_layers={layer.decomposed_layers}"
    if layer.node_dim not in (-2, 0):
        return f"{name} has node_dim={layer.node_dim}"
    if (
        layer._propagate_forward_pre_hooks or layer._propagate_forward_hooks
        or layer._message_forward_pre_hooks or layer._message_forward_hooks
        or layer._aggregate_forward_pre_hooks or layer._aggregate_forward_hooks
        or layer._message_and_aggregate_forward_pre_hooks
        or layer._message_and_aggregate_forward_hooks
        or has_hooks(layer.aggr_module)
    ):  # fmt: skip
        return f"{name} has hooks on its messages or its aggregation"
    return None


def _graph(
    layer: Any, message: Message, x: Any, edge_index: Any, size: Any, arguments: dict[str, Any]
) -> Graph | None:
    """The graph of a call with the weights of its message; None where the call runs unfused."""
    source = x[0] if isinstance(x, tuple) else x
    values = source.values if isinstance(source, CBSR) else source
    if not isinstance(values, Tensor) or values.dim() != 2 or not values.is_floating_point():
        return None
    if _takes_matrix(layer, edge_index):
        return None
    counts = edge_counts(x, size)
    if not message.weighted:
        # As in PyG, the values of an adj_t are weights for a message that asks for them only.
        graph = graph_of(edge_index, counts)
        return graph if graph.edge_weight is None else graph.with_weight(None)
    weight = arguments.get("edge_weight")
    if weight is not None:
        if not isinstance(weight, Tensor) or weight.dim() != 1 or weight.dtype != values.dtype:
            return None
        return graph_of(edge_index, counts, weight)
    graph = graph_of(edge_index, counts)
    if graph.edge_weight is None:
        return graph if message.optional else None
    return graph if graph.edge_weight.dtype == values.dtype else None


def _takes_matrix(layer: Any, edge_index: Any) -> bool:
    """Whether PyG would give this kind of edges to the layer's own ``message_and_aggregate``."""
    pyg: Any = sys.modules["torch_geometric.nn"]
    theirs = pyg.MessagePassing.message_and_aggregate
    own = type(layer).message_and_aggregate is not theirs
    if not own and "message_and_aggregate" not in vars(layer):
        return False
    plain = type(edge_index) is Tensor and edge_index.layout == torch.strided
    return not plain and not isinstance(edge_index, Graph)


def _update(layer: Any, y: Tensor, arguments: dict[str, Any]) -> Tensor:
    """``update`` of a layer with the arguments of ``propagate`` that it asks for."""
    names, _ = _update_names(type(layer).update)
    given = {name: _expanded(arguments[name]) for name in names if name in arguments}
    return cast(Tensor, layer.update(y, **given))


@functools.lru_cache(maxsize=256)
def _update_names(update: Any) -> tuple[tuple[str, ...], bool]:
    """(names of the arguments after the sums, whether they are those of ``propagate``)."""
    names = tuple(inspect.signature(update).parameters)[2:]
    special = sys.modules["torch_geometric.nn"].MessagePassing.special_args
    return names, not any(name in special or name.endswith(("_i", "_j")) for name in names)


def _expanded(value: Any) -> Any:
    """CBSR, also inside of a pair, as dense features; all else as it is."""
    if isinstance(value, CBSR):
        return dense(value)
    if isinstance(value, tuple | list):
        return type(value)(map(_expanded, value))
    return value


def _unfused(layer: Any, edge_index: Any, size: Any, arguments: dict[str, Any]) -> Tensor:
    """PyG's own ``propagate``."""
    if isinstance(edge_index, Graph):
        edge_index, weight, size = _edges(layer, edge_index)
        if weight is not None and arguments.get("edge_weight") is None:
            arguments["edge_weight"] = weight
    arguments = {name: _expanded(value) for name, value in arguments.items()}
    pyg: Any = sys.modules["torch_geometric.nn"]
    result: Tensor = pyg.MessagePassing.propagate(layer, edge_index, size=size, **arguments)
    return result


def _edges(layer: Any, graph: Graph) -> tuple[Tensor, Tensor | None, tuple[int, int]]:
    """(edge_index, weights, size) of a graph in the direction that a layer sends."""
    edge_index, size = graph.edge_index(), (graph.num_src, graph.num_dst)
    if layer.flow != "source_to_target":
        raise ValueError(
            f"flow={layer.flow!r} reads an edge_index in reverse; pass the edge_index, or a Graph "
            "to a layer with flow='source_to_target'"
        )
    return edge_index, graph.weight, size


def _handwritten(cls: type, name: str) -> Any:
    """A method that a class or a base of it wrote by hand, or None where it is PyG's or ours.

    PyG compiles methods into the classes of its layers, in modules named after them.
    """
    for base in cls.__mro__:
        method = vars(base).get(name)
        if method is _propagate or base.__module__.startswith("torch_geometric."):
            return None
        if method is not None and method.__module__ != f"{base.__module__}_{base.__name__}_{name}":
            return method
    return None
