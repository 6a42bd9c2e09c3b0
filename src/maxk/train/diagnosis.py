"""Where numbers stop being finite, for the message that ends a run."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from maxk.cbsr import CBSR


def all_finite(model: nn.Module) -> bool:
    """Whether every parameter and buffer of a model is finite."""
    return not _nonfinite([*model.named_parameters(), *model.named_buffers()])


def first_nonfinite(model: nn.Module, x: Tensor, forward: Callable[[], object]) -> str:
    """Says, in one clause, where the first number that is not finite comes from.

    Args:
        model: the model as it was when the numbers were still looked at.
        x: the features that it is given, dense or sparse.
        forward: runs the model once; its buffers are put back afterwards.
    """
    if not math.isfinite(_largest(x)):
        return "the features are not finite"
    # The running means of batch norm follow the numbers that went wrong, so they explain nothing.
    broken = _nonfinite(model.named_parameters())
    if broken:
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        return f"the weights {broken[0]}{more} are not finite, so a gradient overflowed before"
    with _restored(model), _watched(model) as seen, torch.no_grad():
        forward()
    for name, module, inputs, output in seen:
        where = f"layer {name} ({type(module).__name__})"
        if not math.isfinite(inputs):
            # What the model does between its modules has no name of its own.
            return (
                f"the first values that are not finite reach {where}, so what feeds it overflowed"
            )
        if not math.isfinite(output):
            return (
                f"the first values that are not finite come out of {where}, whose largest input is "
                f"{inputs:.3g}"
            )
    return "every layer's output is finite, so the loss itself overflowed"


def _nonfinite(named: Iterable[tuple[str, Tensor]]) -> list[str]:
    floating = [(n, t) for n, t in named if t.is_floating_point()]
    return [n for n, t in floating if not bool(t.detach().isfinite().all())]


def _largest(value: Any) -> float:
    """The largest size of what a module takes or gives, NaN and infinity included."""
    if isinstance(value, CBSR):
        value = value.values
    if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
        numbers = value.values() if value.layout == torch.sparse_csr else value
        return float(numbers.detach().abs().max())
    if isinstance(value, tuple | list):
        sizes = [_largest(part) for part in value]
        # max() of Python drops a NaN that is not first.
        return next((s for s in sizes if s != s), max(sizes, default=0.0))
    return 0.0


@contextlib.contextmanager
def _watched(model: nn.Module) -> Iterator[list[tuple[str, nn.Module, float, float]]]:
    """Collects name, module, largest input and largest output of every call, inner ones first."""
    seen: list[tuple[str, nn.Module, float, float]] = []
    hooks = []
    for name, module in model.named_modules():

        def note(module: nn.Module, inputs: Any, output: Any, name: str = name) -> None:
            seen.append((name or "the model", module, _largest(inputs), _largest(output)))

        hooks.append(module.register_forward_hook(note))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Puts the buffers back, which batch norm changes in a forward pass."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)
