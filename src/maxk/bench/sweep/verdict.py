"""Scores -> conclusions: which k is not significantly worse than ReLU, and how fast it is."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from maxk.bench.sweep.score import Score, Setting, Speed, bare, on_one_device
from maxk.measure.words import digits

#: Level of the two-sided paired t-test. No correction for the number of k: it would let more of
#: them pass as equal to ReLU.
LEVEL = 0.05
#: A loss that matters; few seeds show no difference, but may not rule such a loss out either.
MARGIN = 0.01
#: With fewer seeds than these nothing is said: nearly no difference is significant then.
FEWEST = 3


@dataclass(frozen=True)
class Verdict:
    """One setting compared with ReLU under the same recipe, seed by seed.

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
    def sure(self) -> bool:
        """Whether the interval rules out a loss of :data:`MARGIN`."""
        return self.low is not None and self.low > -MARGIN and not self.diverged

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
    for setting, own in runs.items():
        relu = next(
            (s for s in runs if s.field == setting.field and s.nonlinearity == "relu"), None
        )
        if relu is None:
            continue
        pairs = [(own[seed].test, runs[relu][seed].test) for seed in own if seed in runs[relu]]
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        if known:
            diverged = sum(score.diverged is not None for score in own.values())
            found.append(_verdict(setting, diverged, known))
    return found


def _verdict(setting: Setting, diverged: int, pairs: Sequence[tuple[float, float]]) -> Verdict:
    own, relu = ([pair[side] for pair in pairs] for side in (0, 1))
    low = high = p = None
    if len(pairs) > 1:
        low, high, p = paired(own, relu)
    return Verdict(
        setting=setting,
        runs=len(pairs),
        diverged=diverged,
        mean=statistics.fmean(own),
        deviation=_deviation(own),
        relu=statistics.fmean(relu),
        relu_deviation=_deviation(relu),
        low=low,
        high=high,
        p=p,
    )


def paired(own: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """The 95 % interval of the mean difference and the p of a two-sided paired t-test.

    Example:
        >>> low, high, p = paired([1.0, 2.0, 3.0], [0.0, 1.1, 2.2])
        >>> low > 0, p < 0.05
        (True, True)
    """
    differences = {a - b for a, b in zip(own, other, strict=True)}
    if len(differences) == 1:
        # Without any spread the statistic is 0 / 0 or infinite.
        (only,) = differences
        return only, only, 0.0 if only else 1.0
    from scipy.stats import ttest_rel

    result = ttest_rel(own, other)
    interval = result.confidence_interval(0.95)
    return float(interval.low), float(interval.high), float(result.pvalue)


@dataclass(frozen=True)
class SmallestK:
    """What the tests say of one model and nonlinearity on one data set.

    Attributes:
        verdicts: Of every k with seeds enough, by k.
        equal: The smallest k that is not worse than ReLU, or None.
        sure: The smallest k whose interval rules out a loss of :data:`MARGIN`, or None.
        speed: Of ``equal``, where it was timed.
    """

    verdicts: tuple[Verdict, ...]
    equal: Verdict | None
    sure: Verdict | None
    speed: Speed | None

    @property
    def later(self) -> list[int]:
        """Larger k than that of ``equal`` that are worse all the same."""
        first = 0 if self.equal is None else self.equal.setting.k or 0
        worse = [v.setting.k or 0 for v in self.verdicts if v.word == "worse"]
        return [k for k in worse if k > first]


def smallest_ks(
    found: Sequence[Verdict], speeds: Iterable[Speed]
) -> list[tuple[Setting, int, SmallestK | None]]:
    """Returns for every model and nonlinearity one of its settings, its seeds, and the choice.

    The choice is None where no k has :data:`FEWEST` seeds.
    """
    timed = {bare(speed): speed for speed in on_one_device(speeds)}
    groups: dict[tuple[object, ...], list[Verdict]] = {}
    for verdict in found:
        if verdict.setting.k is not None:
            key = (*verdict.setting.field, verdict.setting.nonlinearity)
            groups.setdefault(key, []).append(verdict)
    result: list[tuple[Setting, int, SmallestK | None]] = []
    for group in groups.values():
        enough = sorted((v for v in group if v.runs >= FEWEST), key=lambda v: v.setting.k or 0)
        equal = next((v for v in enough if v.word != "worse"), None)
        sure = next((v for v in enough if v.sure), None)
        speed = None if equal is None else timed.get(equal.setting)
        choice = SmallestK(tuple(enough), equal, sure, speed) if enough else None
        result.append((group[0].setting, max(v.runs for v in group), choice))
    return result


def sentences(found: Sequence[Verdict], speeds: Iterable[Speed]) -> list[str]:
    """Says for every model and nonlinearity the smallest k that is not worse than ReLU."""
    return [_sentence(*entry) for entry in smallest_ks(found, speeds)]


def _sentence(setting: Setting, runs: int, choice: SmallestK | None) -> str:
    what = f"{setting.place}, {setting.model}, {setting.nonlinearity}"
    if choice is None:
        return f"{what}: too few seeds ({runs}) to tell a difference; train with --seeds 5 or more"
    test = f"paired t-test over {runs} seeds, two-sided, level {LEVEL:.0%}"
    equal, sure = choice.equal, choice.sure
    if equal is None:
        best = max(choice.verdicts, key=lambda v: v.mean)
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
        f"{percent(equal.relu, equal.relu_deviation)}, difference {interval(equal)}, "
        f"p = {equal.p:.2g}; {test})"
    )
    if choice.speed is not None:
        text += f"; its epoch is {digits(choice.speed.ratio)} times as fast"
    if choice.later:
        text += f"; yet worse at k = {', '.join(map(str, choice.later))}"
    loss = f"a loss of {100 * MARGIN:.0f} point"
    if sure is None:
        return f"{text}; no k rules out {loss}"
    if sure is equal:
        return f"{text}; {loss} is ruled out"
    score = percent(sure.mean, sure.deviation)
    return f"{text}; k = {sure.setting.k} is the smallest that rules out {loss} ({score})"


def interval(verdict: Verdict) -> str:
    """A mean difference with its 95 % interval, in points."""
    text = f"{100 * verdict.difference:+.2f}"
    if verdict.low is None or verdict.high is None:
        return text
    return f"{text} in [{100 * verdict.low:+.2f}, {100 * verdict.high:+.2f}]"


def percent(mean: float, deviation: float) -> str:
    """A mean score with its deviation, in percent.

    Example:
        >>> percent(0.80123, 0.01)
        '80.12 ± 1.00'
    """
    return f"{100 * mean:.2f} ± {100 * deviation:.2f}"


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
