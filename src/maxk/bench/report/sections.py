"""What was recorded, of whatever kind -> the sections of a report."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from maxk.bench.report import trained
from maxk.bench.report.plot import draw_speedups
from maxk.bench.report.read import files, latest_rows
from maxk.bench.report.table import row_tables
from maxk.bench.sweep import picture, score
from maxk.bench.sweep import run as sweeps
from maxk.bench.sweep import tables as accuracy
from maxk.core.errors import DataError
from maxk.measure import rows
from maxk.measure.record import Row

#: Contenders that a speed-up is drawn against, where rows hold one.
_AGAINST = ("torch.sparse", "relu-compiled", "relu-eager")


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
        title: Its heading.
        text: Markdown.
        rows: What the text was made from, one dictionary a row.
    """

    title: str
    text: str
    rows: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Inputs:
    """Paths sorted by what they hold.

    Attributes:
        rows: Measurements of ``maxk bench``.
        studies: Folders of ``maxk sweep``, each with what it holds.
        runs: Run folders of ``maxk train``.
    """

    rows: tuple[Row, ...]
    studies: tuple[tuple[Path, sweeps.Study], ...]
    runs: tuple[trained.Trained, ...]


def studies(paths: Sequence[Path]) -> list[tuple[Path, sweeps.Study]]:
    """Returns the sweeps in the paths, each with its folder."""
    found: list[Path] = []
    for path in paths:
        found += sorted(path.rglob(score.SCORES)) if path.is_dir() else [path]
    return [
        (f.parent, sweeps.open_study([f])) for f in found if f.name == score.SCORES and f.is_file()
    ]


def sort_paths(paths: Sequence[Path]) -> Inputs:
    """Reads every path as what it is; a folder of both measurements and scores gives both.

    Raises:
        DataError: a path holds nothing that was recorded.
    """
    runs = [path for path in paths if trained.is_run(path)]
    others = [path for path in paths if path not in runs]
    measured = [path for path in others if not _only_scores(path)]
    return Inputs(
        rows=tuple(latest_rows(measured)) if measured else (),
        studies=tuple(studies(others)),
        runs=tuple(trained.read_run(path) for path in runs),
    )


def _only_scores(path: Path) -> bool:
    """Whether this holds a sweep and no measurement of times."""
    if not path.is_dir():
        return path.name == score.SCORES
    if not studies([path]):
        return False
    try:
        files([path])
    except DataError:
        return True
    return False


def sections(inputs: Inputs) -> list[Section]:
    """Returns the sections: runs, accuracy, times.

    Raises:
        DataError: there is nothing to show.
    """
    found = []
    if inputs.runs:
        text = trained.runs_table(inputs.runs)
        first, *others = inputs.runs
        changes = [line for other in others for line in trained.compare_runs(first, other)]
        if changes:
            text += "\n\n" + "\n".join(f"- {line}" for line in changes)
        found.append(Section("Training runs", text, tuple(run.summary for run in inputs.runs)))
    for folder, study in inputs.studies:
        scores = tuple(asdict(row) for row in study.scores)
        found.append(Section(f"Accuracy over k: {folder}", accuracy.study_tables(study), scores))
    if inputs.rows:
        text = row_tables(inputs.rows)
        if text:
            found.append(Section("Times", text, tuple(asdict(row) for row in inputs.rows)))
    if not found:
        raise DataError("there is no row to show; give folders of maxk train, sweep or bench")
    return found


def pictures(inputs: Inputs) -> list[tuple[str, bytes]]:
    """Returns captions and PNG files of what can be drawn of the inputs.

    Raises:
        MaxKError: matplotlib is missing.
    """
    found = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "picture.png"
        for _, study in inputs.studies:
            for name, part in sweeps.by_dataset(study):
                picture.draw_dataset(part.scores, part.verdicts, part.speeds, out)
                found.append((f"{name}: accuracy and speed over k", out.read_bytes()))
        for against in _AGAINST:
            timed = [row for row in inputs.rows if row.against == against]
            if any(
                row.k is not None and row.ratio and row.implementation == "auto" for row in timed
            ):
                draw_speedups(timed, out, against=against)
                found.append((f"speed-up over {against} against k", out.read_bytes()))
    return found


def to_csv(found: Sequence[Section]) -> str:
    """Returns all rows of the sections as one table; a column that a row has not is empty."""
    lines = [{"section": s.title, **row} for s in found for row in s.rows]
    return rows.to_csv(lines, list(dict.fromkeys(name for line in lines for name in line)))
