"""Training steps timed against each other: the one engine of epochs, profile and sweep."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from maxk.measure.timer import Timing, interleave, sample_rounds
from maxk.ops import dispatch
from maxk.train.step import Step, captured

K = TypeVar("K", bound=Hashable)

#: Steps of a contender whose operations are timed one by one on a GPU.
SPLITS = 3


@dataclass(frozen=True)
class Timed:
    """The times of one contender.

    Attributes:
        timing: Of whole steps.
        parts: Milliseconds of each part of a step, as :meth:`maxk.train.step.Step.split` names
            them, medians over the rounds; None where they were not asked for.
    """

    timing: Timing
    parts: dict[str, float] | None


def replayed(step: Step, device: torch.device, pool: Any) -> Callable[[], object]:
    """Returns the step from a CUDA graph where the device's kernels allow it, else the step."""
    if device.type == "cuda" and dispatch.cuda_problem(device) is None:
        return captured(step, device, pool)
    return step


def new_pool(device: torch.device) -> Any:
    """Returns memory for CUDA graphs that are made and dropped together; None on a CPU."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


def time_steps(
    steps: Mapping[K, Step],
    device: torch.device,
    *,
    rounds: int,
    budget_s: float,
    calls: Mapping[K, Callable[[], object]] | None = None,
    parts: Collection[K] = (),
    warmup: int = 1,
    least: int = 3,
    splits: int = SPLITS,
) -> dict[K, Timed]:
    """Times whole training steps round by round, with warm caches.

    On a CPU the clock around the operations costs nothing, so that the parts come from the rounds
    themselves. On a GPU the device is waited for after each operation, so that they come from
    steps of their own afterwards.

    Args:
        steps: The contenders.
        device: Where they run.
        rounds: Rounds to time, at most.
        budget_s: Seconds after which no further round begins, at ``least`` rounds or more.
        calls: What is timed instead of a step: the same step, replayed from a CUDA graph.
        parts: The contenders whose parts are wanted.
        warmup: Rounds that run first and are not recorded.
        least: Rounds that are timed whatever the budget.
        splits: Steps on a GPU that the parts are medians of.
    """
    timed: dict[K, Callable[[], object]] = {**steps, **(calls or {})}
    if device.type == "cuda":
        timings = interleave(
            timed, device=device, rounds=rounds, warmup=warmup, cold=False, budget_s=budget_s,
            least=least,
        )  # fmt: skip
        return {
            name: Timed(timings[name], step.split(splits) if name in parts else None)
            for name, step in steps.items()
        }
    for _ in range(warmup):
        for call in timed.values():
            call()
    samples = sample_rounds(
        {name: step.parts if name in parts else partial(_whole, timed[name])
         for name, step in steps.items()},
        rounds=rounds, budget_s=budget_s, least=least,
    )  # fmt: skip
    return {
        name: Timed(
            Timing(tuple(sum(sample.values()) for sample in taken)),
            _medians(taken) if name in parts else None,
        )
        for name, taken in samples.items()
    }


def _whole(call: Callable[[], object]) -> dict[str, float]:
    start = time.perf_counter()
    call()
    return {"step": 1e3 * (time.perf_counter() - start)}


def _medians(samples: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(part[name] for part in samples) for name in samples[0]}
