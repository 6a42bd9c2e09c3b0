"""A converted model that was recorded by ``torch.fx``: it copies and pickles without a new record.

``fx.GraphModule`` pickles its generated code and traces that code again when it is loaded, where
functions of ours are followed into instead of staying calls. Here the nodes themselves are kept.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

# What fx.GraphModule makes itself from the graph.
_MADE = {"_graph", "_code", "_lineno_map", "_prologue_start", "_tracer_cls", "_tracer_extras"}
_map: Any = fx.node.map_aggregate


@dataclass(frozen=True)
class _Node:
    """The place of a node in its graph, in the arguments of another one."""

    place: int


class RecordedModel(fx.GraphModule):
    """The submodules, parameters and attributes of a model, and its recorded forward pass."""

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self).__name__
        return _load, (kind, _attributes(self), _rows(self.graph))

    def __deepcopy__(self, memo: dict[int, Any]) -> RecordedModel:
        attributes = copy.deepcopy(_attributes(self), memo)
        result = _load(type(self).__name__, attributes, copy.deepcopy(_rows(self.graph), memo))
        memo[id(self)] = result
        return result


def recorded(model: nn.Module, graph: fx.Graph) -> RecordedModel:
    """The module of a recording, with everything else that the model holds under its own name."""
    result = RecordedModel(model, graph, class_name=type(model).__name__)
    for registry in ("_modules", "_parameters", "_buffers"):
        for name, value in getattr(model, registry).items():
            # A recording makes folders that hold only what it calls.
            getattr(result, registry)[name] = value
    result._non_persistent_buffers_set |= model._non_persistent_buffers_set
    for name, value in vars(model).items():
        if not name.startswith("_") and name not in vars(result):
            setattr(result, name, value)
    return result


def _attributes(model: fx.GraphModule) -> dict[str, Any]:
    return {name: value for name, value in vars(model).items() if name not in _MADE}


def _rows(graph: fx.Graph) -> list[tuple[Any, ...]]:
    """The nodes of a graph without references to each other."""
    places = {node: place for place, node in enumerate(graph.nodes)}

    def flat(arguments: Any) -> Any:
        return _map(arguments, lambda x: _Node(places[x]) if isinstance(x, fx.Node) else x)

    return [
        (node.op, node.target, _plain(flat(node.args)), _plain(flat(node.kwargs)), node.name)
        for node in graph.nodes
    ]


def _plain(value: Any) -> Any:
    """Arguments in Python's own containers; fx has immutable ones."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if type(value) is tuple:
        return tuple(map(_plain, value))
    if isinstance(value, list):
        return list(map(_plain, value))
    return value


def _load(kind: str, attributes: dict[str, Any], rows: list[tuple[Any, ...]]) -> RecordedModel:
    graph = fx.Graph()
    nodes: list[fx.Node] = []

    def linked(value: Any) -> Any:
        return _map(value, lambda x: nodes[x.place] if type(x) is _Node else x)

    for op, target, args, kwargs, name in rows:
        nodes.append(graph.create_node(op, target, linked(args), linked(kwargs), name))
    root = nn.Module()
    vars(root).update(attributes)
    result = RecordedModel(root, graph, class_name=kind)
    vars(result).update(attributes)
    return result
