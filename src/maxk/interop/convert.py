"""One line that turns a PyG model into a MaxK model."""

from __future__ import annotations

import copy
import sys
from collections.abc import Collection
from typing import Any

from torch import nn

from maxk.core.checks import check_k
from maxk.interop.layers import check_no_hooks, is_convolution, replacement
from maxk.interop.recorded import recorded
from maxk.interop.report import ConversionReport, Converted
from maxk.interop.trace import OTHER_MODULES, Dropout, Rewriter, record
from maxk.interop.trim import TrimToLayer
from maxk.nn.conv import GINConv
from maxk.nn.maxk import MaxK

_REPORT = "maxk_conversion"


def convert(
    model: nn.Module, k: int = 32, *, force: bool = False, skip: Collection[str] = ()
) -> nn.Module:
    """Returns a copy of a model whose activations before convolutions are MaxK on CBSR.

    Where an activation, perhaps a dropout, and a convolution follow each other, the activation
    becomes MaxK, dropout acts on the k stored values, and the convolution aggregates them by SpGEMM
    (SSpMM backward). Every SAGEConv, GCNConv and GINConv of PyG becomes ours; parameters keep their
    names and values, so state dicts fit both ways. What an activation gives to anything but a
    convolution is the dense form of the same MaxK. The first convolution keeps its dense input.

    - ``torch_geometric.nn.models.GraphSAGE``, ``GCN``, ``GIN`` and other ``BasicGNN`` of these
      layers keep their class. Their ``inference`` over a loader is not for CBSR; call the model.
    - A hand-written model is recorded by ``torch.fx`` and comes back as a ``GraphModule``: its
      submodules, attributes and ``forward``, not its other methods. Activations and dropout may be
      modules, functions or methods there.

    :func:`conversion_report` tells what was converted and what was left.

    Args:
        model: the model, trained or not; it is not changed.
        k: entries that MaxK keeps of a row; a ``MaxK`` in the model keeps its own.
        force: replace other activations than ReLU too. The model then is another function, to be
            trained anew.
        skip: paths of convolutions of a hand-written model that stay as they are.

    Raises:
        TypeError: ``model`` is no module, or ``k`` no int.
        ValueError: nothing can be converted; a convolution is of another kind or uses what ours
            does not have; an activation is not ReLU; jumping knowledge or a norm reads what would
            be CBSR; the forward pass branches or cannot be recorded; or k exceeds a width.

    Example:
        >>> import torch, maxk
        >>> class Net(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.conv1 = maxk.nn.SAGEConv(16, 64)
        ...         self.conv2 = maxk.nn.SAGEConv(64, 4)
        ...     def forward(self, x, edge_index):
        ...         x = self.conv1(x, edge_index).relu()
        ...         return self.conv2(x, edge_index)
        >>> model = maxk.convert(Net(), k=8)
        >>> print(maxk.conversion_report(model))
        converted:
          conv1  SAGEConv  dense input from the argument 'x'
          conv2  SAGEConv  ReLU -> MaxK(k=8) -> CBSR
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    check_k(k, max(k, 1) if isinstance(k, int) else 1)
    _check_skip(model, skip)
    result = copy.deepcopy(model)
    converted: list[Converted] = []
    left: list[str] = []
    whole = [name for name, module in result.named_modules() if _is_basic_gnn(module)]
    for name in whole:
        rows = _convert_basic_gnn(result.get_submodule(name), name, k, force, skip)
        converted += rows
        left += _inside(result, rows)
    others = [
        name
        for name, module in result.named_modules()
        if is_convolution(module) and not any(_lies_in(name, outer) for outer in whole)
    ]
    if others:
        result, rows, notes = _convert_written(result, others, set(whole), k, force, skip)
        converted += rows
        left += notes + _inside(result, rows)
    if not any(row.k is not None for row in converted):
        seen = ", ".join(row.source for row in converted) or "no convolution at all"
        raise ValueError(
            f"{type(model).__name__} has no activation directly before a convolution that MaxK "
            f"knows (found: {seen}); put the activation there, or use maxk.nn's layers"
        )
    setattr(result, _REPORT, ConversionReport(tuple(converted), tuple(left)))
    return result


def conversion_report(model: nn.Module) -> ConversionReport:
    """What :func:`convert` converted in a model and what it left; ``print`` shows it.

    Raises:
        ValueError: the model does not come from :func:`convert`.
    """
    report = getattr(model, _REPORT, None)
    if not isinstance(report, ConversionReport):
        raise ValueError(
            f"this {type(model).__name__} does not come from maxk.convert(model, k=...); "
            "convert it first"
        )
    return report


def _check_skip(model: nn.Module, skip: Collection[str]) -> None:
    known = [name for name, module in model.named_modules() if is_convolution(module)]
    for name in skip:
        if name not in known:
            raise ValueError(f"skip names {name!r}, but the convolutions are {', '.join(known)}")


def _lies_in(name: str, outer: str) -> bool:
    return outer == "" or name == outer or name.startswith(f"{outer}.")


def _is_basic_gnn(module: nn.Module) -> bool:
    """Whether this is a BasicGNN of PyG whose forward pass is PyG's own."""
    models: Any = sys.modules.get("torch_geometric.nn.models.basic_gnn")
    if models is None or not isinstance(module, models.BasicGNN):
        return False
    return type(module).forward is models.BasicGNN.forward


def _convert_basic_gnn(
    model: Any, path: str, k: int, force: bool, skip: Collection[str]
) -> list[Converted]:
    kind, prefix = type(model).__name__, f"{path}." if path else ""
    if skipped := [name for name in skip if _lies_in(name, f"{prefix}convs")]:
        raise ValueError(
            f"skip names {skipped[0]!r}, but one activation serves all layers of {kind}; "
            "write its forward pass by hand to convert a part of it"
        )
    if model.jk_mode is not None:
        raise ValueError(
            f"{kind} has jk={model.jk_mode!r}, which reads every activation densely; use jk=None"
        )
    if model.act_first and any(type(norm) is not nn.Identity for norm in model.norms[:-1]):
        raise ValueError(
            f"{kind} has act_first=True and a norm, which would read CBSR; use act_first=False"
        )
    layers = [replacement(conv, f"{prefix}convs.{i}") for i, conv in enumerate(model.convs)]
    act = model.act
    for part in ("act", "dropout"):
        if isinstance(getattr(model, part), nn.Module):
            check_no_hooks(getattr(model, part), f"{prefix}{part}")
    activation = "nothing" if act is None else type(act).__name__
    if isinstance(act, MaxK):
        k = act.k
    elif type(act) is not nn.ReLU and not (force and isinstance(act, OTHER_MODULES)):
        cure = "pass force=True to replace it all the same" if isinstance(
            act, OTHER_MODULES
        ) else "use act='relu'"  # fmt: skip
        raise ValueError(f"the activation of {kind} is {activation}, not ReLU; {cure}")
    if len(layers) > 1:
        check_k(k, model.hidden_channels)
    model.act = MaxK(k, compressed=True)
    model.dropout = Dropout(model.dropout.p).train(model.dropout.training)
    if not isinstance(model._trim, TrimToLayer):
        model._trim = TrimToLayer(model._trim).train(model.training)
    rows = []
    for i, layer in enumerate(layers):
        model.convs[i] = layer
        arrow = " -> dropout" if model.dropout.p else ""
        source = f"{activation} -> MaxK(k={k}){arrow} -> CBSR" if i else "dense input"
        rows.append(Converted(f"{prefix}convs.{i}", type(layer).__name__, k if i else None, source))
    return rows


def _convert_written(
    model: nn.Module,
    convolutions: list[str],
    converted: set[str],
    k: int,
    force: bool,
    skip: Collection[str],
) -> tuple[nn.Module, list[Converted], list[str]]:
    mode = model.training
    ours = [name for name in convolutions if name not in skip]
    for name in ours:
        model.set_submodule(name, replacement(model.get_submodule(name), name))
    leaves = {id(model.get_submodule(name)) for name in (*convolutions, *converted)}
    graph = record(model, lambda module: _stays_whole(module, leaves))
    rewriter = Rewriter(model, graph, ours, k, force)
    rewriter.rewrite()
    rows = []
    for call in rewriter.calls:
        layer = model.get_submodule(str(call.target))
        kept, source = rewriter.sources[call]
        if kept is not None and (width := _width(layer)) is not None:
            check_k(kept, width)
        rows.append(Converted(str(call.target), type(layer).__name__, kept, source))
    left = [
        f"{node.name}: no convolution directly behind it" for node in rewriter.lonely_activations()
    ]
    left += [f"{name}: skipped" for name in convolutions if name in skip]
    return recorded(model, graph).train(mode), rows, left


def _stays_whole(module: nn.Module, leaves: set[int]) -> bool:
    if id(module) in leaves:
        return True
    if isinstance(module, nn.Sequential):
        return False
    return not any(id(inner) in leaves for inner in module.modules())


def _width(layer: Any) -> int | None:
    """Width of the features that a layer takes, where it can be told."""
    if isinstance(layer, GINConv):
        for inner in layer.nn.modules():
            width = getattr(inner, "in_features", getattr(inner, "in_channels", None))
            if isinstance(width, int):
                return width
        return None
    width = layer.in_channels
    return int(width[0] if isinstance(width, tuple) else width)


def _inside(model: nn.Module, rows: list[Converted]) -> list[str]:
    return [
        f"{row.name}.nn: runs inside the layer, on dense features"
        for row in rows
        if isinstance(model.get_submodule(row.name), GINConv)
    ]
