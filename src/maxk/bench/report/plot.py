"""Rows -> a picture: speed-up against k, one panel an operation, one line a graph."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from maxk.core.errors import DataError, MaxKError
from maxk.measure.record import Row


def draw_speedups(
    rows: Iterable[Row],
    out: Path | str,
    *,
    against: str = "torch.sparse",
    implementation: str = "auto",
) -> Path:
    """Draws how many times faster than a contender each operation is, over k.

    The band round a line is the 20th to 80th percentile of the ratios of single rounds; the dashed
    line at 1 is where nothing is gained.

    Args:
        rows: Rows with ratios; others are passed over.
        out: Picture to write; its suffix (``.png``, ``.svg``, ``.pdf``) chooses the format.
        against: The contender.
        implementation: Ours.

    Returns:
        The picture's path.

    Raises:
        DataError: No row compares the implementation with the contender over k.
        MaxKError: matplotlib is missing.
    """
    lines: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        if (
            row.against == against
            and row.implementation == implementation
            and row.k is not None
            and row.ratio
        ):
            label = f"{row.graph}, D = {row.width}" + (f", {row.model}" if row.model else "")
            lines.setdefault(row.op, {}).setdefault(label, []).append(row)
    if not lines:
        raise DataError(
            f"no row compares {implementation} with {against}; choose another --against"
        )
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MaxKError("plots need matplotlib; pip install 'maxk[plot]'") from None
    figure = Figure(figsize=(5.5 * len(lines), 4.2), layout="constrained")
    for panel, (op, graphs) in enumerate(lines.items(), start=1):
        axes = figure.add_subplot(1, len(lines), panel)
        for label, members in graphs.items():
            members.sort(key=lambda row: row.k or 0)
            ks = [float(row.k or 0) for row in members]
            ratios = [float(row.ratio or 0) for row in members]
            lows = [float(row.ratio_low or row.ratio or 0) for row in members]
            highs = [float(row.ratio_high or row.ratio or 0) for row in members]
            (line,) = axes.plot(ks, ratios, marker="o", label=label)
            axes.fill_between(ks, lows, highs, alpha=0.2, color=line.get_color())
        axes.axhline(1.0, linestyle="--", color="grey", linewidth=1)
        axes.set(xscale="log", yscale="log", xlabel="k", title=op)
        axes.set_xscale("log", base=2)
        axes.set_ylabel(f"times faster than {against}")
        axes.legend(fontsize="small")
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
