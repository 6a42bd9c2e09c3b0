"""A k that falls during training: wide rows first, then sparser and sparser ones."""

from __future__ import annotations

from torch import nn

from maxk.nn.nonlinearities import Activation
from maxk.train.config import TrainConfig


def k_at(config: TrainConfig, epoch: int) -> int:
    """Returns the k of an epoch, counted from 1.

    In the first ``anneal`` epochs k falls by halves from the hidden width, each step as long as the
    next; from then on it is ``k``.

    Example:
        >>> config = TrainConfig(hidden=64, k=8, anneal=6)
        >>> [k_at(config, epoch) for epoch in range(1, 9)]
        [64, 64, 32, 32, 16, 16, 8, 8]
    """
    if epoch > config.anneal or config.nonlinearity != "maxk":
        return config.k
    steps = []
    k = config.hidden
    while k > config.k:
        steps.append(k)
        k //= 2
    if not steps:
        return config.k
    return steps[(epoch - 1) * len(steps) // config.anneal]


def set_k(model: nn.Module, k: int) -> bool:
    """Lets every MaxK of a model keep k entries from now on; returns whether that is a change."""
    changed = False
    for module in model.modules():
        if isinstance(module, Activation) and module.nonlinearity == "maxk" and module.k != k:
            module.k = k
            changed = True
    return changed
