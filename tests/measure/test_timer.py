from __future__ import annotations

import pytest
import torch

from maxk.measure.timer import Timing, interleave, percentile, ratio


def test_percentile_interpolates() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert percentile([10.0], 0.2) == 10.0
    assert percentile([0.0, 10.0], 0.8) == pytest.approx(8.0)


def test_timing_reports_median_low_and_high() -> None:
    timing = Timing((5.0, 1.0, 2.0, 3.0, 4.0, 100.0))
    assert timing.ms == 3.5
    assert timing.low == 2.0
    assert timing.high == 5.0


def test_timing_without_samples_is_an_error() -> None:
    with pytest.raises(ValueError, match="samples must hold at least one time"):
        Timing(())


def test_ratio_is_theirs_over_ours_with_the_spread_inside_rounds() -> None:
    theirs, ours = Timing((2.0, 4.0, 8.0)), Timing((1.0, 1.0, 8.0))
    result = ratio(theirs, ours)
    assert result.value == 4.0
    assert result.low == pytest.approx(1.4)
    assert result.high == pytest.approx(3.2)


def test_rounds_interleave_and_rotate() -> None:
    calls: list[str] = []
    names = ("a", "b", "c")
    contenders = {name: (lambda name=name: calls.append(name)) for name in names}
    times = interleave(contenders, rounds=3, warmup=1)
    assert calls == ["a", "b", "c", "a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert {name: len(times[name].samples) for name in names} == dict.fromkeys(names, 3)
    assert all(sample > 0 for name in names for sample in times[name].samples)


def test_budget_stops_after_three_rounds() -> None:
    times = interleave({"a": lambda: None}, rounds=50, budget_s=0.0)
    assert len(times["a"].samples) == 3


def test_no_rounds_is_an_error() -> None:
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        interleave({"a": lambda: None}, rounds=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_events_time_the_device_and_not_the_host() -> None:
    small = torch.rand(256, 256, device="cuda")
    large = torch.rand(8192, 8192, device="cuda")
    times = interleave(
        {"small": lambda: small @ small, "large": lambda: large @ large}, device="cuda", rounds=5
    )
    # 32,768 times the arithmetic: were the queueing timed, both would be equal.
    assert times["large"].ms > 5 * times["small"].ms
