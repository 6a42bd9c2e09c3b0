"""What a run remembers of its epochs."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from maxk.ops.dispatch import Recorder


@dataclass(frozen=True)
class Epoch:
    """What one epoch gave.

    Attributes:
        epoch: Counted from 1.
        loss: Mean training loss, before this epoch's step.
        train: Score of the training nodes after the step, dropout off; so are ``val`` and ``test``.
        val: Score of the validation nodes.
        test: Score of the test nodes.
        seconds: Forward, backward and optimizer step, without the compilation of kernels.
        seconds_evaluate: The forward pass that the scores are taken from.
        seconds_select: Share of ``seconds`` spent in MaxK; None where it was not measured.
        seconds_aggregate: The same for aggregation, forward and backward.
    """

    epoch: int
    loss: float
    train: float
    val: float
    test: float
    seconds: float
    seconds_evaluate: float
    seconds_select: float | None = None
    seconds_aggregate: float | None = None


@dataclass(frozen=True)
class Best:
    """The epoch with the best validation score so far, and its weights on the CPU."""

    epoch: int
    val: float
    test: float
    weights: dict[str, Tensor]


def shares(record: Recorder | None) -> tuple[float | None, float | None]:
    """The recorded seconds of select and aggregate; None where nothing was recorded."""
    return (None, None) if record is None else (record.select, record.aggregate)


def median(values: list[Any]) -> float | None:
    """Median of the numbers that are known; None where there is none."""
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None
