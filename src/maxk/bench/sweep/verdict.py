"""Scores -> what may be said: which k cannot be told from ReLU, and how fast it is."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from maxk.bench.sweep.score import Score, Setting, Speed, bare
from maxk.measure.words import digits

#: Level of the two-sided paired t-test. No correction for the number of k: it would let more of
#: them pass as equal to ReLU.
LEVEL = 0.05
#: Fewer seeds than these bear no sentence: nearly nothing is distinguishable then.
FEWEST = 3


@dataclass(frozen=True)
class Verdict:
    """One setting beside ReLU under the same recipe, seed by seed.

    Attributes:
        setting: Which.
        runs: Seeds that both finished.
        diverged: Runs of the setting that diverged; they are in no mean.
        mean: Test score, mean over the seeds.
        deviation: Sample standard deviation; 0 for one seed.
        relu: Mean of ReLU over the same seeds.
        relu_deviation: Its sample standard deviation.
        low: Lower end of the 95 % interval of the mean difference to ReLU; None below two seeds.
        high: Its upper end.
        p: Of the test; None below two seeds.
    """

    setting: Setting
    runs: int
    diverged: int
    mean: float
    deviation: float
    relu: float
    relu_deviation: float
    low: float | None
    high: float | None
    p: float | None

    @property
    def difference(self) -> float:
        """Mean difference to ReLU."""
        return self.mean - self.relu

    @property
    def word(self) -> Literal["better", "worse", "not distinguishable"]:
        """What the test says at :data:`LEVEL`; a setting that diverged is worse."""
        if self.diverged:
            return "worse"
        if self.p is None or self.p >= LEVEL:
            return "not distinguishable"
        return "better" if self.difference > 0 else "worse"


def verdicts(scores: Iterable[Score]) -> list[Verdict]:
    """Compares every setting with ReLU of the same data set, model and recipe.

    Settings whose ReLU has no finished run in common are left out.
    """
    runs: dict[Setting, dict[int, Score]] = {}
    for score in scores:
        runs.setdefault(bare(score), {})[score.seed] = score
    found = []
    for setting, mine in runs.items():
        relu = next(
            (s for s in runs if s.field == setting.field and s.nonlinearity == "relu"), None
        )
        if relu is None:
            continue
        pairs = [(mine[seed].test, runs[relu][seed].test) for seed in mine if seed in runs[relu]]
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        if known:
            diverged = sum(score.diverged is not None for score in mine.values())
            found.append(_verdict(setting, diverged, known))
    return found


def _verdict(setting: Setting, diverged: int, pairs: Sequence[tuple[float, float]]) -> Verdict:
    mine, relu = ([pair[side] for pair in pairs] for side in (0, 1))
    low = high = p = None
    if len(pairs) > 1:
        low, high, p = paired(mine, relu)
    return Verdict(
        setting=setting,
        runs=len(pairs),
        diverged=diverged,
        mean=statistics.fmean(mine),
        deviation=_deviation(mine),
        relu=statistics.fmean(relu),
        relu_deviation=_deviation(relu),
        low=low,
        high=high,
        p=p,
    )


def paired(mine: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """The 95 % interval of the mean difference and the p of a two-sided paired t-test.

    Example:
        >>> low, high, p = paired([1.0, 2.0, 3.0], [0.0, 1.1, 2.2])
        >>> low > 0, p < 0.05
        (True, True)
    """
    differences = {a - b for a, b in zip(mine, other, strict=True)}
    if len(differences) == 1:
        # Without any spread the statistic is 0 / 0 or infinite.
        (only,) = differences
        return only, only, 0.0 if only else 1.0
    from scipy.stats import ttest_rel

    result = ttest_rel(mine, other)
    interval = result.confidence_interval(0.95)
    return float(interval.low), float(interval.high), float(result.pvalue)


def sentences(found: Sequence[Verdict], speeds: Iterable[Speed]) -> list[str]:
    """Says for every model and nonlinearity the smallest k that cannot be told from ReLU."""
    timed = {bare(speed): speed for speed in speeds}
    groups: dict[tuple[object, ...], list[Verdict]] = {}
    for verdict in found:
        if verdict.setting.k is not None:
            key = (*verdict.setting.field, verdict.setting.nonlinearity)
            groups.setdefault(key, []).append(verdict)
    return [
        _sentence(sorted(group, key=lambda v: v.setting.k or 0), timed) for group in groups.values()
    ]


def _sentence(group: Sequence[Verdict], timed: dict[Setting, Speed]) -> str:
    first = group[0]
    what = f"{first.setting.place}, {first.setting.model}, {first.setting.nonlinearity}"
    equal = next((v for v in group if v.word != "worse"), None)
    runs = max(v.runs for v in group)
    if runs < FEWEST:
        return f"{what}: {runs} seeds tell no difference; train with --seeds 5 or more"
    test = f"paired t-test over {runs} seeds, two-sided, level {LEVEL:.0%}"
    if equal is None:
        best = max(group, key=lambda v: v.mean)
        return (
            f"{what}: every k is worse than ReLU ({test}); the best, k = {best.setting.k}, "
            f"by {100 * -best.difference:.2f} points"
        )
    words = {
        "better": "that is not worse than ReLU, it is better",
        "not distinguishable": "not distinguishable from ReLU",
    }
    text = (
        f"{what}: k = {equal.setting.k} is the smallest k {words[equal.word]} "
        f"({percent(equal.mean, equal.deviation)} against "
        f"{percent(equal.relu, equal.relu_deviation)}, difference "
        f"{100 * equal.difference:+.2f}"
    )
    if equal.low is not None and equal.high is not None:
        text += f" in [{100 * equal.low:+.2f}, {100 * equal.high:+.2f}]"
    text += f", p = {equal.p:.2g}; {test})"
    speed = timed.get(equal.setting)
    if speed is not None:
        text += f"; its epoch is {digits(speed.ratio)} times as fast"
    later = [v.setting.k for v in group if v.word == "worse" and v.setting.k > equal.setting.k]  # type: ignore[operator]
    if later:
        text += f"; yet worse at k = {', '.join(map(str, later))}"
    return text


def percent(mean: float, deviation: float) -> str:
    """A mean score with its deviation, in percent.

    Example:
        >>> percent(0.80123, 0.01)
        '80.12 ± 1.00'
    """
    return f"{100 * mean:.2f} ± {100 * deviation:.2f}"


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
