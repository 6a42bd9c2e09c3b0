"""Fits of a function -> a table and the picture of the error over the width."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from maxk.bench.fit.run import Fit
from maxk.bench.report.table import markdown
from maxk.core.errors import MaxKError

_TITLES = {"square": "x²", "sin": "sin 2πx", "abs": "|x|", "surface": "sin πx cos πy"}


def label(fit: Fit) -> str:
    """What a row or a line is called."""
    return "ReLU" if fit.k is None else f"MaxK, {fit.rule}"


def error_table(fits: Sequence[Fit]) -> str:
    """Returns the median root mean square error, and the median largest one in brackets."""
    widths = sorted({fit.width for fit in fits})
    body = []
    for (function, name), group in _lines(fits).items():
        line = [function, name]
        for width in widths:
            selected = [fit for fit in group if fit.width == width]
            rmse = statistics.median(fit.rmse for fit in selected)
            worst = statistics.median(fit.worst for fit in selected)
            line.append(f"{rmse:.1e} ({worst:.1e})")
        body.append(line)
    return markdown(["function", "hidden layer", *(f"H = {width}" for width in widths)], body)


def draw_errors(fits: Sequence[Fit], out: Path) -> Path:
    """Draws the error over the width, one panel per function: median of the seeds, and their range.

    Raises:
        MaxKError: matplotlib is missing.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    error_figure(fits).savefig(out, dpi=150)
    return out


def error_figure(fits: Sequence[Fit]) -> Any:
    """Returns the picture of :func:`draw_errors` as a matplotlib figure."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MaxKError("pictures need matplotlib; pip install 'maxk[plot]'") from None
    functions = list(dict.fromkeys(fit.function for fit in fits))
    columns = min(2, len(functions))
    lines = -(-len(functions) // columns)
    page = Figure(figsize=(4.4 * columns, 3.0 * lines + 0.5), layout="constrained")
    panels: list[Any] = list(page.subplots(lines, columns, squeeze=False).flat)
    widths = sorted({fit.width for fit in fits})
    for empty in panels[len(functions) :]:
        empty.set_axis_off()
    for panel, function in zip(panels, functions, strict=False):
        for (name, hidden), group in _lines(fits).items():
            if name != function:
                continue
            by_width = [[fit.rmse for fit in group if fit.width == w] for w in widths]
            middle = [statistics.median(values) for values in by_width]
            style = {"color": "#555555", "marker": "s"} if hidden == "ReLU" else {"marker": "o"}
            (line,) = panel.plot(widths, middle, label=hidden, linewidth=1.2, **style)
            low, high = [min(v) for v in by_width], [max(v) for v in by_width]
            panel.fill_between(widths, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        panel.set(xscale="log", yscale="log", title=_TITLES[function], xlabel="hidden units H")
        panel.set_xscale("log", base=2)
        panel.set_xticks(widths, [str(w) for w in widths])
        panel.minorticks_off()
        panel.grid(alpha=0.25)
        panel.set_ylabel("root mean square error")
    handles, names = panels[0].get_legend_handles_labels()
    page.legend(handles, names, loc="outside lower center", ncols=len(names), fontsize="small")
    return page


def _lines(fits: Sequence[Fit]) -> dict[tuple[str, str], list[Fit]]:
    groups: dict[tuple[str, str], list[Fit]] = {}
    for fit in fits:
        groups.setdefault((fit.function, label(fit)), []).append(fit)
    return groups
