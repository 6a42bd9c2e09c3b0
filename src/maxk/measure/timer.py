"""Interleaved timing of several contenders in one process.

One round runs every contender once; the contender that goes first changes from round to round, so
that a machine that slows down or speeds up does so for all of them. What is reported is a median
with a low and a high (20th and 80th percentile) over the rounds, and for two contenders the ratio
of their medians with the spread of the ratios inside one round.

On a GPU a region is timed with CUDA events. The L2 is flushed first by writing a buffer several
times its size, and that write also hides the launch gaps: the host queues the region while the
buffer is being written. On a CPU the host's clock is read around the call.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

#: The flush writes this many bytes at least, and four times the L2 at least.
FLUSH_BYTES = 1 << 29
#: Writes of that buffer before each region. One flushes; together they last about a millisecond,
#: in which the host queues the region: a walk through autograd takes it up to 0.8 ms.
FLUSHES = 8


@dataclass(frozen=True)
class Timing:
    """The times of one contender, one entry per round.

    Attributes:
        samples: Milliseconds, in the order of the rounds.
    """

    samples: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.samples:
            raise ValueError("samples must hold at least one time, got none; run one round or more")

    @property
    def ms(self) -> float:
        """The median, in milliseconds."""
        return statistics.median(self.samples)

    @property
    def low(self) -> float:
        """The 20th percentile, in milliseconds."""
        return percentile(self.samples, 0.2)

    @property
    def high(self) -> float:
        """The 80th percentile, in milliseconds."""
        return percentile(self.samples, 0.8)


@dataclass(frozen=True)
class Ratio:
    """How many times faster one contender is than another.

    Attributes:
        value: The other's median over ours.
        low: 20th percentile of the ratios taken round by round.
        high: 80th percentile of the same.
    """

    value: float
    low: float
    high: float


def percentile(samples: Sequence[float], share: float) -> float:
    """Returns the value below which ``share`` of the samples are, interpolated linearly.

    Example:
        >>> percentile([1.0, 2.0, 3.0], 0.5)
        2.0
    """
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def ratio(against: Timing, ours: Timing) -> Ratio:
    """Returns ``against``'s median over ``ours``'s, with its spread over the common rounds."""
    pairs = [a / b for a, b in zip(against.samples, ours.samples, strict=False)]
    return Ratio(against.ms / ours.ms, percentile(pairs, 0.2), percentile(pairs, 0.8))


def interleave(
    contenders: Mapping[K, Callable[[], object]],
    *,
    device: torch.device | str = "cpu",
    rounds: int = 9,
    warmup: int = 2,
    cold: bool | None = None,
    budget_s: float | None = None,
    least: int = 3,
) -> dict[K, Timing]:
    """Times contenders round by round.

    Args:
        contenders: Name -> the call to time; what it returns is dropped.
        device: Where the work runs; decides the clock.
        rounds: Rounds to time, at most.
        warmup: Rounds that run first and are not recorded.
        cold: Flush the caches before each call. None means yes on a GPU and no on a CPU, where
            the benchmark's graphs are chosen to be inside or outside the cache.
        budget_s: Stop after the round that passes this many seconds.
        least: Rounds that are timed whatever the budget.

    Returns:
        One :class:`Timing` per contender, all with the same number of rounds.

    Raises:
        ValueError: ``rounds`` is below 1.

    Example:
        >>> times = interleave({"a": lambda: sum(range(10)), "b": lambda: None}, rounds=3)
        >>> len(times["a"].samples)
        3
    """
    where = torch.device(device)
    clock = _CudaClock(where, cold is not False) if where.type == "cuda" else _HostClock(bool(cold))
    for _ in range(warmup):
        for call in contenders.values():
            call()
    clock.settle()
    samples = sample_rounds(
        {name: partial(clock.measure, call) for name, call in contenders.items()},
        rounds=rounds,
        budget_s=budget_s,
        least=least,
    )
    return {name: Timing(tuple(values)) for name, values in samples.items()}


def sample_rounds(
    samplers: Mapping[K, Callable[[], T]],
    *,
    rounds: int,
    budget_s: float | None = None,
    least: int = 3,
) -> dict[K, list[T]]:
    """Takes one sample of each contender per round; another contender begins each round.

    Args:
        samplers: Name -> the call that runs the contender and returns its sample.
        rounds: Rounds, at most.
        budget_s: Stop after the round that passes this many seconds.
        least: Rounds that are run whatever the budget.

    Raises:
        ValueError: ``rounds`` is below 1.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    names = list(samplers)
    samples: dict[K, list[T]] = {name: [] for name in names}
    start = time.perf_counter()
    for turn in range(rounds):
        shift = turn % max(len(names), 1)
        for name in names[shift:] + names[:shift]:
            samples[name].append(samplers[name]())
        if budget_s is not None and turn + 1 >= least and time.perf_counter() - start > budget_s:
            break
    return samples


class _HostClock:
    """Reads the host's clock around a call."""

    def __init__(self, cold: bool) -> None:
        self._flush: Tensor | None = torch.empty(1 << 25) if cold else None

    def settle(self) -> None:
        """Nothing runs asynchronously on a CPU."""

    def measure(self, call: Callable[[], object]) -> float:
        if self._flush is not None:
            self._flush.zero_()
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e3


class _CudaClock:
    """Records events around a call on the current stream of one device."""

    def __init__(self, device: torch.device, cold: bool) -> None:
        self._device = device
        self._flush: Tensor | None = None
        if cold:
            cache = torch.cuda.get_device_properties(device).L2_cache_size
            size = max(FLUSH_BYTES, 4 * cache)
            self._flush = torch.empty(size, dtype=torch.uint8, device=device)

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)

    def measure(self, call: Callable[[], object]) -> float:
        with torch.cuda.device(self._device):
            begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            torch.cuda.synchronize(self._device)
            if self._flush is not None:
                for _ in range(FLUSHES):
                    self._flush.zero_()
            begin.record()
            call()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end))
