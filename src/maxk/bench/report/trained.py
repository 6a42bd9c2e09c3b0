"""Run folders of ``maxk train`` -> a table, and what differs between two of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maxk.bench.report.table import markdown
from maxk.bench.sweep.verdict import LEVEL, paired, percent
from maxk.core.errors import DataError
from maxk.measure.timer import percentile
from maxk.measure.words import digits
from maxk.train.folder import EPOCHS, SUMMARY, seed_folders


@dataclass(frozen=True)
class Trained:
    """One finished run folder.

    Attributes:
        folder: Its path.
        summary: What it says of itself.
        tests: Test score by seed.
        seconds: Seconds of every epoch, of all seeds.
    """

    folder: Path
    summary: dict[str, Any]
    tests: dict[int, float]
    seconds: tuple[float, ...]


def is_run(path: Path) -> bool:
    """Whether a path is the folder of a finished run."""
    return (path / SUMMARY).is_file()


def read_run(folder: Path) -> Trained:
    """Reads a finished run.

    Raises:
        DataError: a file in it is missing or broken.
    """
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        runs = summary.get("runs", [summary])
        tests = {int(run["seed"]): float(run["test"]) for run in runs}
        seconds = [
            float(json.loads(line)["seconds"])
            for inner in seed_folders(folder)
            for line in (inner / EPOCHS).read_text(encoding="utf-8").splitlines()
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder}: is no whole run folder ({error})") from None
    return Trained(folder, summary, tests, tuple(seconds))


def runs_table(runs: Sequence[Trained]) -> str:
    """Returns the runs as a Markdown table."""
    body = []
    for run in runs:
        summary, values = run.summary, list(run.tests.values())
        mean = sum(values) / len(values)
        spread = (sum((v - mean) ** 2 for v in values) / max(len(values) - 1, 1)) ** 0.5
        epoch = summary.get("seconds_per_epoch")
        body.append([
            run.folder.name, summary["dataset"], summary["model"], summary["nonlinearity"],
            "-" if summary["k"] is None else str(summary["k"]), str(len(values)),
            percent(mean, spread) if len(values) > 1 else f"{100 * mean:.2f}",
            "-" if epoch is None else f"{digits(1e3 * epoch)} ms",
        ])  # fmt: skip
    header = ["run", "graph", "model", "nonlinearity", "k", "seeds", "test (%)", "an epoch"]
    return markdown(header, body)


def compare_runs(before: Trained, after: Trained) -> list[str]:
    """Says of the score, and of the time of an epoch, whether it got better or worse.

    Scores are compared by a paired t-test over the seeds that both ran, times by their spread from
    the 20th to the 80th percentile.
    """
    names = f"{before.folder.name} -> {after.folder.name}"
    seeds = sorted(before.tests.keys() & after.tests.keys())
    if len(seeds) < 2:
        score = "the score: not distinguishable, as fewer than two seeds are common"
    else:
        a, b = [before.tests[s] for s in seeds], [after.tests[s] for s in seeds]
        low, high, p = paired(b, a)
        difference = 100 * (sum(b) - sum(a)) / len(seeds)
        word = _word(difference, p < LEVEL)
        score = (
            f"the score: {word}, {difference:+.2f} points in [{100 * low:+.2f}, {100 * high:+.2f}] "
            f"(paired t-test over {len(seeds)} seeds, p = {p:.2g})"
        )
    lines = [f"{names}, {score}"]
    if before.seconds and after.seconds:
        spans = [(percentile(r.seconds, 0.2), percentile(r.seconds, 0.8)) for r in (before, after)]
        apart = spans[0][1] < spans[1][0] or spans[1][1] < spans[0][0]
        medians = [percentile(r.seconds, 0.5) for r in (before, after)]
        word = _word(medians[0] - medians[1], apart)
        lines.append(
            f"{names}, the epoch: {word}, {digits(1e3 * medians[0])} -> "
            f"{digits(1e3 * medians[1])} ms"
        )
    return lines


def _word(gain: float, apart: bool) -> str:
    return "not distinguishable" if not apart else "better" if gain > 0 else "worse"
