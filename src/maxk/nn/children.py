"""When the parameters of a child module may be read instead of calling it.

A fused operation needs the weight of a linear layer or a norm. Reading it skips everything that
hangs on the call: hooks, parametrisations, quantisation, adapters, sharding. So a child is read
only where calling it would do nothing else than its class says, and is called otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode

from maxk.cbsr import CBSR
from maxk.nn.functional import add_linear, dense, linear
from maxk.ops.contract import check_added

_has_any_global_hook: Callable[[], object] = torch_module._has_any_global_hook
_TENSORS = (nn.Parameter, Tensor)  # torch.func.functional_call puts plain tensors in


def has_hooks(module: nn.Module) -> bool:
    """Whether calling a module calls hooks, its own or those of all modules."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or _has_any_global_hook()
    )


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether calling a child does nothing but what its class says with its own weight and bias.

    False for a subclass (parametrised, wrapped, adapted, lazy or sharded layers are such), for any
    hook on the module or on all modules, for a replaced or compiled ``forward``, and for a weight
    that is no plain tensor.

    Args:
        module: the child.
        kind: the class that the fused operation replaces, with parameters "weight" and "bias".
    """
    if type(module) is not kind or module._compiled_call_impl is not None or has_hooks(module):
        return False
    # What is pruned or normalised the old way keeps its weight outside of the parameters.
    parameters = module._parameters
    weight, bias = parameters.get("weight"), parameters.get("bias")
    if type(weight) not in _TENSORS or "forward" in module.__dict__:
        return False
    return bias is None or type(bias) in _TENSORS


def apply_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """Returns ``layer(x)`` for dense features [N, F] or a torch sparse CSR matrix [N, F].

    Args:
        layer: a linear layer of any class.
        x: the features.
    """
    if is_plain(layer, nn.Linear):
        plain = cast(nn.Linear, layer)
        return linear(x, plain.weight, plain.bias)
    if x.layout == torch.strided:
        return cast(Tensor, layer(x))
    with _SparseLinear():
        return cast(Tensor, layer(x))


class _SparseLinear(TorchFunctionMode):
    """Makes ``F.linear`` inside any module take a sparse CSR matrix."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and (args[0] if args else kwargs["input"]).layout != torch.strided:
            return linear(*args, **{"x" if key == "input" else key: v for key, v in kwargs.items()})
        return func(*args, **kwargs)


def add_applied(y: Tensor, maker: nn.Module, layer: nn.Module, x: CBSR | Tensor) -> Tensor:
    """Returns ``y + layer(x)``, in place and from the k stored entries where nobody can tell.

    Args:
        y: [N, out], the result of ``maker``.
        maker: the linear layer that returned y; its hooks may have kept y.
        layer: the linear layer to apply, of any class.
        x: [N, D].
    """
    if not is_plain(layer, nn.Linear):
        added = cast(Tensor, layer(dense(x)))
        check_added(y, added.shape[0], added.shape[-1], y.shape[1])
        return y + added
    plain = cast(nn.Linear, layer)
    if not is_plain(maker, nn.Linear):
        y = y.clone()
    y = add_linear(y, x, plain.weight)
    return y if plain.bias is None else y + plain.bias
