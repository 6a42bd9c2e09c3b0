"""What follows from a graph: made once, and fit for every later use.

Whoever asks first may do so while a model is validated; training asks next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def make(build: Callable[[], T]) -> T:
    """Calls ``build`` so that autograd can save the tensors that it makes.

    A tensor made under ``torch.inference_mode()`` can never be saved for a backward pass. No
    gradient flows through what is made here.
    """
    with torch.inference_mode(False), torch.no_grad():
        return build()


def same(then: Tensor, now: Tensor) -> bool:
    """Whether two tensors hold the same numbers; on a GPU the answer waits for the device."""
    return then.device == now.device and then.dtype == now.dtype and torch.equal(then, now)
