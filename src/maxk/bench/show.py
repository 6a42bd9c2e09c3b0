"""What the benchmarks print: a line per comparison while they run, and a table at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from maxk.measure.record import Row, append_results
from maxk.measure.words import digits, ratio_words

#: Columns of a file or pipe: wide enough for every column of the table.
WIDE = 180

#: Called with what is absent, wrong or skipped, in words.
Say = Callable[[str], object]


def follow(
    make: Callable[[Say], Iterable[list[Row]]], implementations: tuple[str, ...], out: Path
) -> None:
    """Runs a benchmark: appends its rows as they come, and prints what they say.

    Args:
        make: Yields the rows of one (graph, k) after the other, given where to say what is missing.
        implementations: Ours, as rows call them.
        out: Folder that rows are appended to.
    """
    console = Console()
    console = console if console.is_terminal else Console(width=WIDE)
    everything: list[Row] = []
    for rows in make(console.print):
        append_results(rows, out)
        everything += rows
        for row in rows:
            if row.implementation in implementations and row.against is not None:
                console.print(line(row), highlight=False)
    console.print(summary(everything, implementations))
    compared = [
        row for row in everything if row.implementation in implementations and row.ratio is not None
    ]
    lost = [row for row in compared if _is_slower(row)]
    console.print(f"slower than a contender in {len(lost)} of {len(compared)} comparisons")
    console.print(f"{len(everything)} rows appended under {out}")


def _is_slower(row: Row) -> bool:
    """Whether ours is slower, beyond the spread of the rounds."""
    assert row.ratio is not None
    return row.ratio < 1 and (row.ratio_high is None or row.ratio_high < 1)


def line(row: Row) -> str:
    """Returns one comparison in words, as it appears while the benchmark runs."""
    what = row.op if row.model is None else f"{row.op} {row.model}"
    k = "" if row.k is None else f" k = {row.k}"
    words = f"{row.graph} D = {row.width}{k} {what}: {digits(row.ms)} ms"
    return f"{words}, x {row.against} {ratio_words(row).strip('*')}"


def summary(rows: Sequence[Row], implementations: tuple[str, ...]) -> Table:
    """Returns a table of what our implementations did; losses are red, ties carry ``~``."""
    ours = [row for row in rows if row.implementation in implementations]
    contenders = list(dict.fromkeys(row.against for row in ours if row.against is not None))
    title = f"{ours[0].device}, {ours[0].dtype}, torch {ours[0].torch}" if ours else "nothing"
    table = Table(title=title)
    epoch = any(row.op == "epoch" for row in ours)
    names = ["graph", "op", "D", "k", "ms", "20 % to 80 %"]
    names += ["peak memory"] if epoch else ["GB/s", "ceiling"]
    for name in names + [f"x {contender}" for contender in contenders]:
        table.add_column(name, justify="left" if name in ("graph", "op") else "right")
    lines: dict[tuple[object, ...], dict[str | None, Row]] = {}
    for row in ours:
        key = (row.graph, row.op, row.model, row.width, row.k, row.implementation)
        lines.setdefault(key, {})[row.against] = row
    for cells in lines.values():
        row = cells.get(None) or next(iter(cells.values()))
        what = row.op if row.model is None else f"{row.op} {row.model}"
        if row.implementation != "auto":
            what += f" ({row.implementation})"
        table.add_row(
            row.graph,
            what,
            str(row.width),
            "-" if row.k is None else str(row.k),
            digits(row.ms),
            f"{digits(row.ms_low)} to {digits(row.ms_high)}",
            *([_memory(row)] if epoch else _rate(row)),
            *(_colour(cells.get(contender)) for contender in contenders),
        )
    return table


def _memory(row: Row) -> str:
    return "-" if row.peak_memory is None else f"{row.peak_memory / 2**30:.2f} GiB"


def _rate(row: Row) -> list[str]:
    return [
        "-" if row.gbps is None else f"{row.gbps:.0f}",
        "-" if row.fraction is None else f"{row.fraction:.0%} {row.ceiling}",
    ]


def _colour(row: Row | None) -> str:
    words = ratio_words(row)
    return f"[red]{words.strip('*')}[/red]" if words.startswith("**") else words
