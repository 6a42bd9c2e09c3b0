"""Our aggregation in a ``MessagePassing`` layer of one's own."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from maxk.cbsr import CBSR
from maxk.graph.cache import graph_of
from maxk.nn.conv import Features, Pair, Size, edge_counts, ends
from maxk.ops.aggregate import aggregate
from maxk.ops.maxk.op import to_dense

_PROBE = 8  # rows on which a layer's message is compared with the fused one


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

    For layers whose message is ``x_j`` or ``edge_weight * x_j`` and whose aggregation is sum or
    mean. Nothing else in the layer changes, ``x`` may be CBSR, and any kind of ``edge_index`` or
    ``adj_t`` is taken. On its first call a layer compares its own ``message`` with the fused one.

    Raises:
        TypeError: when a class is made whose ``message``, ``aggregate`` or ``propagate`` cannot be
            fused.
        ValueError: on a call, where ``message`` computes something else.

    Example:
        >>> import torch, maxk
        >>> from torch_geometric.nn import MessagePassing
        >>> class Conv(maxk.interop.FusedMessage, MessagePassing):
        ...     def forward(self, x, edge_index):
        ...         return self.propagate(edge_index, x=x)
        >>> Conv(aggr="sum")(maxk.maxk(torch.eye(3), k=1), torch.tensor([[0, 1], [2, 2]]))[2]
        tensor([1., 1., 0.])
    """

    _message_checked = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        features, _ = _message_arguments(cls)
        for name in ("propagate", "aggregate", "message_and_aggregate"):
            if name in vars(cls):
                raise TypeError(
                    f"{cls.__name__} has its own {name}, which FusedMessage would pass by; leave "
                    "one of them out"
                )

        def propagate(self: Any, edge_index: Any, size: Any = None, **arguments: Any) -> Tensor:
            return _propagate(self, features, edge_index, size, arguments)

        # PyG compiles a propagate of its own into every class that does not define one.
        cls.propagate = propagate  # type: ignore[attr-defined]


def _message_arguments(cls: type) -> tuple[str, bool]:
    """(name of the features, whether weights are taken) of a layer's ``message``."""
    names = list(inspect.signature(cls.message).parameters)[1:]  # type: ignore[attr-defined]
    features = [name for name in names if name.endswith("_j")]
    others = [name for name in names if name not in features]
    if len(features) != 1 or others not in ([], ["edge_weight"]):
        raise TypeError(
            f"the message of {cls.__name__} must be made of x_j, or of x_j and edge_weight, to be "
            f"fused, got ({', '.join(names)}); leave FusedMessage out"
        )
    return features[0][:-2], bool(others)


def _propagate(
    layer: Any, features: str, edge_index: Any, size: Any, arguments: dict[str, Any]
) -> Tensor:
    if layer.flow != "source_to_target":
        raise ValueError(
            f"FusedMessage sends from source to target, got flow={layer.flow!r}; turn the edges "
            "round with edge_index.flip(0)"
        )
    if layer.explain:
        raise ValueError("FusedMessage cannot be explained: no message exists; leave it out there")
    x, weight = arguments[features], arguments.get("edge_weight")
    pair = tuple(x) if isinstance(x, list) else x
    _, weighted = _message_arguments(type(layer))
    if not layer._message_checked:
        _check_message(layer, features, ends(pair)[0], weighted)
        layer._message_checked = True
    if not weighted:
        # As in PyG, the values of an adj_t are weights for a message that asks for them only.
        graph = graph_of(edge_index, edge_counts(pair, size))
        edge_index, weight = graph if graph.edge_weight is None else graph.with_weight(None), None
    y = propagate(edge_index, pair, layer.aggr, edge_weight=weight, size=size)
    result: Tensor = layer.update(y)
    return result


@torch.no_grad()
def _check_message(layer: Any, features: str, source: Features, weighted: bool) -> None:
    """Raises ValueError where a layer's message on some rows is not the fused one."""
    values = to_dense(source) if isinstance(source, CBSR) else source
    rows = values[:_PROBE]
    weight = torch.linspace(0.5, 2.0, rows.shape[0], dtype=rows.dtype, device=rows.device)
    arguments: dict[str, Any] = {f"{features}_j": rows}
    if weighted:
        arguments["edge_weight"] = weight
    got = layer.message(**arguments)
    want = rows * weight[:, None] if weighted else rows
    if got.shape != want.shape or not torch.allclose(got, want, rtol=1e-3, equal_nan=True):
        shown = "edge_weight * x_j" if weighted else "x_j"
        raise ValueError(
            f"the message of {type(layer).__name__} is not {shown}, which FusedMessage sums; leave "
            "FusedMessage out, or do the rest before propagate"
        )
