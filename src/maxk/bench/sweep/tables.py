"""The scores of a sweep -> Markdown: accuracy and speed over k, and what may be said of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from maxk.bench.models import MODELS
from maxk.bench.report.table import markdown
from maxk.bench.sweep.run import Study
from maxk.bench.sweep.score import Score, Setting, Speed, bare, devices, on_one_device
from maxk.bench.sweep.verdict import (
    FEWEST,
    LEVEL,
    MARGIN,
    Verdict,
    interval,
    paired,
    percent,
    smallest_ks,
)
from maxk.core.errors import DataError
from maxk.nn.nonlinearities import REGULAR


def study_tables(study: Study) -> str:
    """Returns for each model and nonlinearity a table of scores and one of speeds per device.

    Then what a k costs over all of them, and which k to choose.

    A line is a data set, a column is a k; "ReLU passes" is the share of hidden entries that are
    positive. A score that the paired test finds worse than ReLU's is bold, a better one carries
    ``+``; the others are not significantly different. A number in brackets is that of
    the seeds where it is smaller than in the rest of the line.
    """
    parts = []
    kinds = dict.fromkeys(
        (v.setting.model, v.setting.nonlinearity) for v in study.verdicts if v.setting.k
    )
    for model, nonlinearity in sorted(kinds, key=lambda kind: list(MODELS).index(kind[0])):
        selected = [
            v
            for v in study.verdicts
            if v.setting.model == model and v.setting.nonlinearity == nonlinearity
        ]
        parts.append(f"**{MODELS[model].title}, {nonlinearity}**: test score in percent\n\n"
                     + _scores(selected, study.scores))  # fmt: skip
        if nonlinearity not in REGULAR:
            parts.append(
                f"**{MODELS[model].title}, {nonlinearity}**: entries that pass in training, in "
                f"percent of D; MaxK stores 100 k / D\n\n" + _passing(selected, study.scores)
            )
        timed = [s for s in study.speeds if (s.model, s.nonlinearity) == (model, nonlinearity)]
        for device in dict.fromkeys(s.device for s in timed):
            here = [s for s in timed if s.device == device]
            parts.append(
                f"**{MODELS[model].title}, {nonlinearity}**: an epoch, times as fast as ReLU's "
                f"({devices(here)})\n\n" + _speeds(here)
            )
    parts += _overviews(study.verdicts)
    chosen = _choices(study)
    if chosen:
        parts.append(
            "**Smallest k** that a paired t-test over the seeds (two-sided, level "
            f"{100 * LEVEL:.0f} %, not corrected for the number of k) does not tell from ReLU for "
            "the worse; and smallest whose 95 % interval rules out a loss of "
            f"{100 * MARGIN:.0f} point\n\n{chosen}"
        )
    return "\n\n".join(parts)


def _overviews(verdicts: Sequence[Verdict]) -> list[str]:
    """For each nonlinearity, the verdicts of every k counted over the graphs and models."""
    parts = []
    selected = [v for v in verdicts if v.setting.k and v.runs >= FEWEST]
    for nonlinearity in dict.fromkeys(v.setting.nonlinearity for v in selected):
        by_k: dict[int, list[Verdict]] = {}
        for v in selected:
            if v.setting.nonlinearity == nonlinearity:
                by_k.setdefault(v.setting.k or 0, []).append(v)
        if max(map(len, by_k.values())) > 1:
            body = [_overview(k, found) for k, found in sorted(by_k.items())]
            header = ["k", "of", "worse than ReLU", "better", "mean difference"]
            header += ["largest loss told", f"no loss of {100 * MARGIN:.0f} point"]
            parts.append(
                f"**{nonlinearity} over all graphs and models**: how many the test tells from "
                "ReLU, the differences in points, and how many intervals rule out a loss of "
                f"{100 * MARGIN:.0f} point\n\n" + markdown(header, body)
            )
    return parts


def _overview(k: int, found: Sequence[Verdict]) -> list[str]:
    worse = [v for v in found if v.word == "worse"]
    better = sum(v.word == "better" for v in found)
    mean = sum(v.difference for v in found) / len(found)
    least = min(worse, key=lambda v: v.difference, default=None)
    loss = "-"
    if least is not None:
        where = f"{least.setting.place}, {MODELS[least.setting.model].title}"
        loss = f"{-100 * least.difference:.2f} ({where})"
    sure = sum(v.sure for v in found)
    line = [str(k), str(len(found)), str(len(worse)), str(better), f"{100 * mean:+.2f}"]
    return [*line, loss, str(sure)]


def _choices(study: Study) -> str:
    timed = on_one_device(study.speeds)
    found = [entry for entry in smallest_ks(study.verdicts, timed) if entry[2] is not None]
    models = list(MODELS)
    found.sort(key=lambda entry: (entry[0].dataset, models.index(entry[0].model)))
    body = []
    for setting, _, choice in found:
        assert choice is not None
        line = [setting.place, MODELS[setting.model].title, setting.nonlinearity]
        equal, sure = choice.equal, choice.sure
        if equal is None:
            line += ["none", "-", "-", "-"]
        else:
            speed = "-" if choice.speed is None else f"{choice.speed.ratio:.2f}"
            line += [str(equal.setting.k), interval(equal), f"{equal.p:.2g}", speed]
        line.append(", ".join(map(str, choice.later)) or "-")
        line.append("none" if sure is None else str(sure.setting.k))
        body.append(line)
    header = [
        "graph",
        "model",
        "nonlinearity",
        "k",
        "difference to ReLU",
        "p",
        "epoch, times as fast" + (f" ({devices(timed)})" if timed else ""),
    ]
    return markdown([*header, "yet worse at", "no loss of 1 point from"], body) if body else ""


def _scores(verdicts: Sequence[Verdict], scores: Sequence[Score]) -> str:
    ks = sorted({v.setting.k or 0 for v in verdicts})
    body = []
    for field in dict.fromkeys(v.setting.field for v in verdicts):
        cells = {v.setting.k: v for v in verdicts if v.setting.field == field}
        first = max(cells.values(), key=lambda v: v.runs)
        width = next((s.hidden for s in scores if s.field == field), None)
        runs = max(v.runs for v in cells.values())
        line = [first.setting.place, str(width), str(runs)]
        line += [_share(scores, field, None), percent(first.relu, first.relu_deviation)]
        line += [_cell(cells.get(k), runs) for k in ks]
        body.append(line)
    header = ["graph", "D", "seeds", "ReLU passes", "ReLU"]
    return markdown([*header, *(f"k = {k}" for k in ks)], body)


def _passing(verdicts: Sequence[Verdict], scores: Sequence[Score]) -> str:
    settings = {v.setting.k: v.setting for v in verdicts}
    ks = sorted(k for k in settings if k is not None)
    fields = dict.fromkeys(v.setting.field for v in verdicts)
    place = {v.setting.field: v.setting.place for v in verdicts}
    name = verdicts[0].setting.nonlinearity
    body = [[place[f], *(_share(scores, f, k, name) for k in ks)] for f in fields]
    return markdown(["graph", *(f"k = {k}" for k in ks)], body)


def _share(
    scores: Sequence[Score], field: tuple[str, ...], k: int | None, nonlinearity: str = "relu"
) -> str:
    """The mean share of hidden entries that pass, in percent."""
    found = [
        s.kept
        for s in scores
        if s.kept is not None and (s.field, s.k, s.nonlinearity) == (field, k, nonlinearity)
    ]
    return f"{100 * sum(found) / len(found):.1f} %" if found else "-"


def _cell(verdict: Verdict | None, runs: int) -> str:
    if verdict is None:
        return "-"
    text = percent(verdict.mean, verdict.deviation)
    if verdict.runs < runs:
        text += f" ({verdict.runs})"
    if verdict.word == "worse":
        return f"**{text}**"
    return f"{text} +" if verdict.word == "better" else text


def _speeds(speeds: Sequence[Speed]) -> str:
    ks = sorted({s.k or 0 for s in speeds})
    body = []
    for field in dict.fromkeys(s.field for s in speeds):
        cells = {s.k: s for s in speeds if s.field == field}
        first = next(iter(cells.values()))
        line = [first.place, f"{first.ms * first.ratio:.2f}"]
        line += [_speed(cells.get(k)) for k in ks]
        body.append([*line, f"{first.ceiling:.2f}"])
    return markdown(["graph", "ReLU, ms", *(f"k = {k}" for k in ks), "ceiling"], body)


def _speed(speed: Speed | None) -> str:
    if speed is None:
        return "-"
    text = f"{speed.ratio:.2f}"
    if speed.ratio_low <= 1 <= speed.ratio_high:
        return f"~{text}"
    return f"**{text}**" if speed.ratio < 1 else text


def compare_sweeps(before: Iterable[Score], after: Iterable[Score]) -> str:
    """Returns what two sweeps trained alike as a table: better, worse or not distinguishable.

    The test is that of :func:`maxk.bench.sweep.verdict.paired`, seed by seed. The recipe may
    differ: another recipe is what one compares two sweeps for.

    Raises:
        DataError: they have no setting with two seeds in common.
    """
    old, new = _by_setting(before), _by_setting(after)
    body = []
    for setting, new_scores in new.items():
        old_scores = old.get(setting, {})
        seeds = sorted(new_scores.keys() & old_scores.keys())
        if len(seeds) < 2:
            continue
        a, b = [old_scores[s] for s in seeds], [new_scores[s] for s in seeds]
        low, high, p = paired(b, a)
        difference = (sum(b) - sum(a)) / len(seeds)
        word = "not distinguishable" if p >= LEVEL else "better" if difference > 0 else "worse"
        dataset, model, nonlinearity, k, _ = setting
        body.append([
            str(dataset), str(model), str(nonlinearity), "-" if k is None else str(k),
            str(len(seeds)), f"{100 * sum(a) / len(seeds):.2f}", f"{100 * sum(b) / len(seeds):.2f}",
            f"{100 * difference:+.2f} in [{100 * low:+.2f}, {100 * high:+.2f}]", f"{p:.2g}", word,
        ])  # fmt: skip
    if not body:
        raise DataError("the two sweeps have no setting with two seeds in common")
    header = ["graph", "model", "nonlinearity", "k", "seeds", "before", "after", "difference", "p"]
    return markdown([*header, ""], body)


def _by_setting(scores: Iterable[Score]) -> dict[tuple[object, ...], dict[int, float]]:
    found: dict[tuple[object, ...], dict[int, float]] = {}
    for score in scores:
        setting: Setting = bare(score)
        key = (setting.dataset, setting.model, setting.nonlinearity, setting.k, setting.groups)
        if score.test is not None:
            found.setdefault(key, {})[score.seed] = score.test
    return found
