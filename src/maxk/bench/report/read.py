"""Result files and folders -> the rows that count."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from maxk.bench.sweep import score
from maxk.core.errors import DataError
from maxk.measure import rows
from maxk.measure.record import Row

#: Folders of scores and of errors next to the folders of times.
OTHERS = ("accuracy", "approximation")


def files(paths: Iterable[Path | str]) -> list[Path]:
    """Returns the ``.jsonl`` files that paths name; folders are searched to the bottom.

    Folders named as in :data:`OTHERS` and the files of a sweep hold rows of another kind, and are
    passed over.

    Raises:
        DataError: A path does not exist, or a folder holds no rows.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = [
                file
                for file in sorted(path.rglob("*.jsonl"))
                if not set(OTHERS) & {path.name, *file.relative_to(path).parts}
                and file.name not in (score.SCORES, score.SPEEDS)
            ]
            if not inside:
                raise DataError(f"{path}: the folder holds no .jsonl file; run maxk bench first")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise DataError(f"{path}: no such file or folder; run maxk bench first")
    return found


def latest_rows(paths: Iterable[Path | str]) -> list[Row]:
    """Returns the rows of all files, the latest measurement of each thing only.

    Two rows measure the same thing when they agree in :data:`maxk.measure.record.KEY`; the later
    date and time wins, then the later line. The order of first appearance is kept.
    """
    found = (row for path in files(paths) for row in rows.read(path, Row))
    return rows.latest(found, lambda row: row.key, lambda row: row.when)


def filter_rows(
    measured: Iterable[Row],
    *,
    suites: tuple[str, ...] = (),
    ops: tuple[str, ...] = (),
    graphs: tuple[str, ...] = (),
    device: str | None = None,
    ks: tuple[int, ...] = (),
    widths: tuple[int, ...] = (),
    precision: str | None = None,
) -> list[Row]:
    """Returns the rows of some suites, operations, graphs and shapes; empty means all.

    ``device`` matches any part of the name, in either case.
    """
    return [
        row
        for row in measured
        if (not suites or row.suite in suites)
        and (not ops or row.op in ops)
        and (not graphs or row.graph in graphs)
        and (device is None or device.lower() in row.device.lower())
        and (not ks or row.k in ks)
        and (not widths or row.width in widths)
        and (precision is None or row.precision == precision)
    ]
