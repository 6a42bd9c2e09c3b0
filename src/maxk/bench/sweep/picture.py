"""Scores and speeds -> the picture: accuracy above, epoch speed-up below, over k."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from maxk.bench.models import MODELS
from maxk.bench.sweep.score import Score, Setting, Speed, devices, on_one_device
from maxk.bench.sweep.verdict import FEWEST, LEVEL, Verdict
from maxk.core.errors import DataError, MaxKError
from maxk.train.metrics import METRIC_NAMES

_COLOURS = {
    "maxk": "#1f5fa8",
    "maxk-grouped": "#7a4fa3",
    "fatrelu": "#c0562f",
    "dropout-relu": "#3f8f4f",
}
_LABELS = {
    "maxk": "MaxK",
    "maxk-grouped": "MaxK in groups",
    "fatrelu": "FATReLU",
    "dropout-relu": "ReLU, randomly thinned",
}


def draw_dataset(
    scores: Sequence[Score], verdicts: Sequence[Verdict], speeds: Sequence[Speed], out: Path
) -> Path:
    """Draws one data set, one column per model.

    Above, mean and sample deviation of the test score over the seeds; the line with a band is ReLU.
    A hollow marker is a score that the paired test finds worse than ReLU's, a cross one of
    too few seeds. Below, how many times as fast an epoch is; the dotted line is Amdahl's ceiling,
    ReLU's epoch without the time of its aggregations. MaxK can pass it: it has less to drop, too.

    Args:
        scores: Of one data set.
        verdicts: Of the same.
        speeds: Of the same, of which one device's are drawn; without any, the lower row is left
            out.
        out: Picture to write; its suffix (``.png``, ``.svg``, ``.pdf``) chooses the format.

    Returns:
        The picture's path.

    Raises:
        DataError: there is nothing to draw.
        MaxKError: matplotlib is missing.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    dataset_figure(scores, verdicts, speeds).savefig(out, dpi=150)
    return out


def dataset_figure(
    scores: Sequence[Score], verdicts: Sequence[Verdict], speeds: Sequence[Speed]
) -> Any:
    """Returns the picture of :func:`draw_dataset` as a matplotlib figure."""
    if not verdicts:
        raise DataError("there is no run to draw beside one of ReLU with the same seed")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MaxKError("pictures need matplotlib; pip install 'maxk[plot]'") from None
    fields = sorted(
        {v.setting.field for v in verdicts}, key=lambda f: (list(MODELS).index(f[1]), f)
    )
    speeds = on_one_device(speeds)
    rows = 2 if speeds else 1
    page = Figure(figsize=(4.3 * len(fields) + 0.4, 3.3 * rows + 0.9), layout="constrained")
    axes: Any = page.subplots(rows, len(fields), squeeze=False, sharex="col")
    metric = METRIC_NAMES[scores[0].metric]
    for column, field in enumerate(fields):
        selected = [v for v in verdicts if v.setting.field == field]
        _scores(axes[0][column], selected)
        axes[0][column].set_title(MODELS[field[1]].title)
        if speeds:
            _speeds(axes[1][column], [s for s in speeds if s.field == field])
        axes[rows - 1][column].set_xlabel(f"k, entries kept of {_width(scores, field)}")
    axes[0][0].set_ylabel(f"test {metric} (%)")
    if speeds:
        axes[1][0].set_ylabel(f"epoch, times as fast as ReLU's\n({devices(speeds)})")
    runs = max(v.runs for v in verdicts)
    title = f"{scores[0].dataset}: mean and deviation of {runs} seeds, {devices(scores)}"
    page.suptitle(title, fontsize="medium")
    handles: dict[str, Any] = {}
    for panel in axes.flat:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    page.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize="small"
    )
    return page


def _scores(axes: Any, verdicts: Sequence[Verdict]) -> None:
    ks: list[int] = []
    for nonlinearity, group in _by_nonlinearity(verdicts).items():
        colour = _COLOURS[nonlinearity]
        x = [v.setting.k or 0 for v in group]
        ks += x
        y = [100 * v.mean for v in group]
        spread = [100 * v.deviation for v in group]
        axes.errorbar(
            x, y, spread, color=colour, capsize=3, linewidth=1.2, label=_LABELS[nonlinearity]
        )
        for n, v in enumerate(group):
            face = "white" if v.word == "worse" else colour
            marker = "x" if v.runs < FEWEST else "o"
            axes.plot(x[n], y[n], marker, color=colour, markerfacecolor=face)
    if any(v.word == "worse" for v in verdicts):
        label = f"worse than ReLU (p < {LEVEL})"
        axes.plot([], [], "o", color="#555555", markerfacecolor="white", label=label)
    if any(v.runs < FEWEST for v in verdicts):
        label = f"fewer than {FEWEST} seeds, not tested"
        axes.plot([], [], "x", color="#555555", label=label)
    relu = next((v for v in verdicts if v.setting.k is None), verdicts[0])
    mean, spread_ = 100 * relu.relu, 100 * relu.relu_deviation
    axes.axhline(mean, color="#555555", linewidth=1.2, label="ReLU, mean and deviation")
    axes.axhspan(mean - spread_, mean + spread_, color="#555555", alpha=0.15, linewidth=0)
    _over_k(axes, ks)


def _speeds(axes: Any, speeds: Sequence[Speed]) -> None:
    ks: list[int] = []
    for nonlinearity, group in _by_nonlinearity(speeds).items():
        x = [s.k or 0 for s in group]
        ks += x
        (line,) = axes.plot(
            x, [s.ratio for s in group], "o-", color=_COLOURS[nonlinearity], linewidth=1.2
        )
        axes.fill_between(
            x,
            [s.ratio_low for s in group],
            [s.ratio_high for s in group],
            color=line.get_color(),
            alpha=0.2,
            linewidth=0,
        )
    axes.axhline(1.0, color="#555555", linewidth=1.2)
    if speeds:
        ceiling = speeds[0].ceiling
        axes.axhline(
            ceiling,
            color="black",
            linestyle=":",
            label="Amdahl's ceiling: an epoch without aggregation",
        )
    _over_k(axes, ks)


_Row = TypeVar("_Row", Verdict, Speed)


def _by_nonlinearity(rows: Sequence[_Row]) -> dict[str, list[_Row]]:
    groups: dict[str, list[_Row]] = {}
    for row in rows:
        setting = _setting_of(row)
        if setting.k is not None:
            groups.setdefault(setting.nonlinearity, []).append(row)
    for group in groups.values():
        group.sort(key=lambda row: _setting_of(row).k or 0)
    return groups


def _setting_of(row: Verdict | Speed) -> Setting:
    return row if isinstance(row, Speed) else row.setting


def _over_k(axes: Any, ks: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    shown = sorted(set(ks))
    axes.set_xticks(shown, [str(k) for k in shown], rotation=45, fontsize="small")
    axes.minorticks_off()
    axes.grid(alpha=0.25)


def _width(scores: Sequence[Score], field: tuple[str, str, str, str]) -> int | None:
    return next(score.hidden for score in scores if score.field == field)
