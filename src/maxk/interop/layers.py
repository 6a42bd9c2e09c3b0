"""Convolutions of PyG replaced by ours: the same parameters in a layer that takes CBSR."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from maxk.nn.children import is_plain
from maxk.nn.conv import GCNConv, GINConv, SAGEConv

OURS = (SAGEConv, GCNConv, GINConv)
PARTS = {"forward", "message", "aggregate", "message_and_aggregate", "update"}
KNOWN = "SAGEConv, GCNConv and GINConv"


def is_convolution(module: nn.Module) -> bool:
    """Whether a module passes messages: one of ours, or any ``MessagePassing`` of PyG."""
    return isinstance(module, OURS) or _is_message_passing(module)


def _is_message_passing(module: nn.Module) -> bool:
    # A module of PyG cannot exist before PyG was imported.
    pyg: Any = sys.modules.get("torch_geometric.nn")
    return pyg is not None and isinstance(module, pyg.MessagePassing)


def replacement(conv: nn.Module, name: str) -> nn.Module:
    """Our layer in place of a convolution, on the very same parameters; ours is returned as it is.

    Args:
        conv: PyG's or our SAGEConv, GCNConv or GINConv.
        name: what to call it in messages.

    Raises:
        ValueError: it is another layer, or uses what ours does not have.
    """
    if type(conv) in OURS:
        return conv
    kind = type(conv).__name__
    theirs: Any = conv
    if not _is_message_passing(conv) or type(conv).__module__.split(".")[0] != "torch_geometric":
        raise _refusal(name, kind, f"is no layer that MaxK knows ({KNOWN} of PyG or maxk.nn)")
    if kind not in ("SAGEConv", "GCNConv", "GINConv"):
        raise _refusal(name, kind, f"is none of {KNOWN}")
    if theirs.flow != "source_to_target":
        raise _refusal(name, kind, f"has flow={theirs.flow!r}")
    check_no_hooks(conv, name)
    check_no_hooks(theirs.aggr_module, f"{name}.aggr_module")
    if patched := sorted(PARTS & vars(conv).keys()):
        raise _refusal(name, kind, f"has its own {patched[0]}")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in conv.parameters()):
        raise _refusal(name, kind, "is not initialized yet; call the model once first")
    with torch.device("meta"):  # its parameters are thrown away
        ours = {"SAGEConv": _sage, "GCNConv": _gcn, "GINConv": _gin}[kind](theirs, name)
    _share(conv, ours, name)
    return ours.train(conv.training)


def _sage(theirs: Any, name: str) -> nn.Module:
    if theirs.aggr not in ("mean", "sum", "add"):
        raise _refusal(name, "SAGEConv", f"has aggr={theirs.aggr!r}, not 'mean' or 'sum'")
    in_channels = theirs.in_channels
    if isinstance(in_channels, tuple | list):
        root = getattr(theirs, "lin_r", theirs.lin_l)
        in_channels = (_width(in_channels[0], theirs.lin_l), _width(in_channels[1], root))
    return SAGEConv(
        _width(in_channels, theirs.lin_l),
        theirs.out_channels,
        aggr=theirs.aggr,
        normalize=theirs.normalize,
        root_weight=theirs.root_weight,
        project=theirs.project,
        bias=getattr(theirs.lin_l, "bias", None) is not None,
    )


def _width(given: Any, linear: nn.Module) -> Any:
    """The width that a layer was made for, or took from its first input."""
    return getattr(linear, "in_channels", given) if given == -1 else given


def _gcn(theirs: Any, name: str) -> nn.Module:
    if theirs.improved:
        raise _refusal(name, "GCNConv", "has improved=True")
    if theirs.aggr not in ("sum", "add"):
        raise _refusal(name, "GCNConv", f"has aggr={theirs.aggr!r}, not 'sum'")
    return GCNConv(
        _width(theirs.in_channels, theirs.lin),
        theirs.out_channels,
        cached=theirs.cached,
        add_self_loops=theirs.add_self_loops,
        normalize=theirs.normalize,
        bias=theirs.bias is not None,
    )


def _gin(theirs: Any, name: str) -> nn.Module:
    if theirs.aggr not in ("sum", "add"):
        raise _refusal(name, "GINConv", f"has aggr={theirs.aggr!r}, not 'sum'")
    trained = isinstance(theirs.eps, nn.Parameter)
    return GINConv(theirs.nn, eps=theirs.initial_eps, train_eps=trained)


def check_no_hooks(module: nn.Module, name: str) -> None:
    """Refuses to replace a module that somebody watches.

    Raises:
        ValueError: hooks of torch or of PyG are registered on it.
    """
    hooks = (value for key, value in vars(module).items() if key.endswith("_hooks"))
    if any(hooks):
        raise ValueError(
            f"{name} ({type(module).__name__}) has hooks, which the conversion would lose; remove "
            "them, convert the model and register them again"
        )


def _share(theirs: nn.Module, ours: nn.Module, name: str) -> None:
    """Puts the parameters and buffers of one layer into the other, themselves and not copies.

    A child that does more than its class says (hooks, parametrisations, adapters) moves as a whole.
    """
    linear = sys.modules["torch_geometric.nn"].Linear
    for child, module in theirs.named_children():
        if child in ours._modules and not is_plain(module, linear):
            setattr(ours, child, module)
    for kind in ("named_parameters", "named_buffers"):
        given = dict(getattr(theirs, kind)(remove_duplicate=False))
        wanted = dict(getattr(ours, kind)(remove_duplicate=False))
        if given.keys() != wanted.keys():
            odd = ", ".join(sorted(given.keys() ^ wanted.keys()))
            raise _refusal(name, type(theirs).__name__, f"has other parameters than ours ({odd})")
        for path, tensor in given.items():
            if wanted[path] is not tensor:
                owner, _, leaf = path.rpartition(".")
                setattr(ours.get_submodule(owner), leaf, tensor)


def _refusal(name: str, kind: str, why: str) -> ValueError:
    return ValueError(
        f"{name} ({kind}) cannot be converted: it {why}; in a hand-written model, "
        f"skip=[{name!r}] leaves it as it is"
    )
