"""Rows -> Markdown tables, losses included."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from maxk.core.errors import DataError
from maxk.measure.record import Row
from maxk.measure.words import milliseconds, ratio_words

#: The words that fence the part of a page that ``maxk report table --into`` rewrites.
START, END = "<!-- results -->", "<!-- /results -->"

_TITLES = {
    "forward": "Forward aggregation",
    "backward": "Backward aggregation",
    "maxk": "MaxK",
    "spmm": "Dense aggregation",
    "epoch": "Training epoch",
}


def row_tables(rows: Iterable[Row], *, implementation: str = "auto") -> str:
    """Returns one Markdown table for each operation, width and device.

    A line is what one implementation did on one graph at one k; a column ``x NAME`` is how many
    times faster than that contender it was. A ratio below 1 is a loss and printed bold; a ratio
    whose spread over the rounds reaches 1 carries ``~``: no difference.

    Args:
        rows: What to show.
        implementation: Ours to show.
    """
    groups: dict[tuple[str, str, str, int, str], list[Row]] = {}
    for row in rows:
        if row.implementation == implementation:
            key = (row.suite, row.device, row.op, row.width, row.precision or "")
            groups.setdefault(key, []).append(row)
    parts = []
    for (suite, device, op, width, precision), members in groups.items():
        first = members[0]
        where = first.machine if device == "cpu" else device
        facts = [
            f"suite {suite}",
            f"D = {width}",
            f"{first.dtype}",
            *([f"precision {precision}"] if precision else []),
            f"{where}" + (f", {first.threads} threads" if device == "cpu" else ""),
            f"torch {first.torch}",
            f"commit {', '.join(dict.fromkeys(row.commit for row in members))}",
            ", ".join(dict.fromkeys(row.date for row in members)),
        ]
        parts.append(f"**{_TITLES[op]}** ({', '.join(facts)})\n\n{_table(op, members)}")
    return "\n\n".join(parts)


def _table(op: str, rows: Sequence[Row]) -> str:
    contenders = list(dict.fromkeys(row.against for row in rows if row.against is not None))
    lines: dict[tuple[object, ...], dict[str | None, Row]] = {}
    for row in rows:
        key = (row.graph, row.model, row.layers, row.k)
        lines.setdefault(key, {})[row.against] = row
    epoch = op == "epoch"
    header = ["graph", *(["model"] if epoch else []), "k", "ms (20th to 80th percentile)"]
    header += [f"x {name}" for name in contenders]
    header += ["peak memory"] if epoch else ["GB/s", "of ceiling"]
    body = []
    for cells in lines.values():
        row = cells.get(None) or next(iter(cells.values()))
        line = [row.graph, *([f"{row.model}, {row.layers} layers"] if epoch else [])]
        line += ["-" if row.k is None else str(row.k), milliseconds(row)]
        line += [ratio_words(cells.get(name)) for name in contenders]
        if epoch:
            line.append("-" if row.peak_memory is None else f"{row.peak_memory / 2**30:.2f} GiB")
        else:
            line.append("-" if row.gbps is None else f"{row.gbps:.0f}")
            line.append("-" if row.fraction is None else f"{row.fraction:.0%} {row.ceiling}")
        body.append(line)
    return markdown(header, body)


def markdown(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table; the first column is left-aligned, the others right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *body))


def insert(page: Path, text: str) -> None:
    """Replaces what is between :data:`START` and :data:`END` of a page.

    Raises:
        DataError: The page is missing or has not exactly one such pair.
    """
    try:
        before = page.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{page}: cannot be read ({error.strerror})") from None
    if before.count(START) != 1 or before.count(END) != 1:
        raise DataError(f"{page}: needs one line {START} and one line {END} around the tables")
    head, _, rest = before.partition(START)
    _, found, tail = rest.partition(END)
    if not found:
        raise DataError(f"{page}: {END} must stand after {START}")
    page.write_text(f"{head}{START}\n\n{text}\n\n{END}{tail}", encoding="utf-8")
