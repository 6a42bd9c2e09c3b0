"""The picture of a profile: stacked bars of the epoch, and the line of one without aggregation."""

from __future__ import annotations

from pathlib import Path

from maxk.bench.epochs.profile import PARTS, Profile
from maxk.core.errors import MaxKError
from maxk.measure.words import digits

_COLOURS = {"select": "#e6a23c", "forward": "#1f5fa8", "backward": "#7fb2e5", "rest": "#c9ccd1"}
_NAMES = {
    "select": "select (MaxK)",
    "forward": "aggregate, forward",
    "backward": "aggregate, backward",
    "rest": "rest",
}


def draw_profile(profile: Profile, out: Path | str) -> Path:
    """Draws a profile.

    One bar for ReLU and one for each k, cut into select, aggregate forward, aggregate backward and
    rest; above it the times faster than ReLU. The dashed line is a ReLU epoch without aggregation,
    the Amdahl ceiling.

    Args:
        profile: What was measured.
        out: Picture to write; its suffix (``.png``, ``.svg``, ``.pdf``) chooses the format.

    Returns:
        The picture's path.

    Raises:
        MaxKError: matplotlib is missing, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MaxKError("--plot needs matplotlib; pip install 'maxk[plot]'") from None
    bars = [profile.relu, *profile.maxk]
    figure = Figure(figsize=(max(6.5, 1.1 * len(bars) + 2.5), 4.8), layout="constrained")
    axes = figure.add_subplot()
    bottoms = [0.0] * len(bars)
    # The rest is lowest, so that the ceiling line can be compared with the parts above it.
    for part in reversed(PARTS):
        heights = [bar.parts[part] for bar in bars]
        axes.bar(
            range(len(bars)),
            heights,
            bottom=bottoms,
            width=0.7,
            color=_COLOURS[part],
            label=_NAMES[part],
        )
        bottoms = [b + h for b, h in zip(bottoms, heights, strict=True)]
    for place, (bar, top) in enumerate(zip(bars, bottoms, strict=True)):
        speed = "" if bar.achieved is None else f"\nx {bar.achieved:.2f}"
        axes.annotate(
            f"{digits(bar.ms)} ms{speed}",
            (place, top),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize="small",
        )
    axes.axhline(
        profile.relu.ms / profile.ceiling,
        linestyle="--",
        color="#b03030",
        linewidth=1.3,
        label=f"ReLU without aggregation: ceiling x {profile.ceiling:.2f}",
    )
    axes.set_xticks(range(len(bars)), [bar.label for bar in bars])
    axes.set_ylabel("ms an epoch")
    axes.set_ylim(0, 1.18 * max(bottoms))
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(
        f"{profile.dataset}: {profile.model}, {profile.layers} x {profile.hidden}, "
        f"{profile.device}, aggregation {profile.share:.0%} of ReLU's epoch",
        fontsize="medium",
    )
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles[::-1], labels[::-1], loc="outside lower center", ncols=3, fontsize="small",
        frameon=False,
    )  # fmt: skip
    path = Path(out)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise MaxKError(f"--plot {path} cannot be written: {error}") from error
    return path
