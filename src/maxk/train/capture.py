"""A part of training replayed from a CUDA graph: no launch gap, and nothing of Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Captured:
    """A call recorded once and replayed ever after.

    What the call reads must stay where it is in memory, and its result is overwritten by the next
    replay. Recording runs nothing: parameters, moments and random state are as they were, and the
    numbers that dropout draws in a replay are those the call would have drawn.

    Args:
        call: Returns a tensor; it ran at least once before, so that all it makes on first use is
            there.
        device: A CUDA device.
        pool: Memory that calls replayed one after the other share.
    """

    def __init__(self, call: Callable[[], Tensor], device: torch.device, pool: Any) -> None:
        with torch.cuda.device(device):
            self._graph: Any = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, pool=pool):
                self._result = call()

    def __call__(self) -> Tensor:
        """Replays the call and returns its result, which the next replay overwrites."""
        self._graph.replay()
        return self._result
