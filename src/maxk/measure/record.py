"""What one measured number is: a row, one JSON object a line.

Rows are appended to ``results/<device>/<date>-<commit>.jsonl`` and never rewritten. A row without
``against`` is a contender's own time; a row with ``against`` compares the implementation with that
contender, timed in the same rounds of the same process.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch

from maxk.core.errors import DataError
from maxk.measure.environment import environment

#: The operations a row may measure.
OPS = ("forward", "backward", "maxk", "spmm", "epoch")


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        suite: Which set of cases it belongs to.
        op: ``forward``, ``backward``, ``maxk``, ``spmm`` or ``epoch``.
        implementation: Who was timed; ``auto`` is what a user gets without asking.
        graph: Name of the graph.
        nodes: Source nodes N.
        edges: Edges E.
        width: D, columns of a dense feature row.
        k: Kept entries a row; None where the operation has none.
        dtype: Of the values, as ``float32``.
        device: ``cpu``, or the GPU's name.
        ms: Median.
        ms_low: 20th percentile.
        ms_high: 80th percentile.
        against: The contender compared with.
        ratio: ``against``'s median over ours: above 1 means that ours is faster.
        ratio_low: 20th percentile of the ratios of single rounds.
        ratio_high: 80th percentile of the same.
        gbps: Bytes by :mod:`maxk.measure.traffic` over the median, in GB/s.
        fraction: The time that the operation's memory accesses take alone, over the median.
        ceiling: Which accesses: ``copy`` of its bytes, ``gather`` of one row an edge, or
            ``reduce``, one row of sums an edge.
        rounds: Rounds that the median is taken over.
        model: For epochs: ``sage``, ``gcn`` or ``gin``.
        layers: For epochs: graph convolutions of the model.
        peak_memory: For epochs: bytes.
        split: For epochs: milliseconds of select, forward, backward, dense and optimiser.
        precision: torch's word for float32 products: ``highest``, ``high`` or ``medium``.
        torch: Version.
        cuda: Version torch was built for; None on a CPU build.
        driver: Of the GPU.
        commit: Of this package, ``unknown`` outside a checkout.
        date: Day, ISO 8601.
        time: Hour of that day, UTC, ISO 8601.
        machine: Processor, or host and GPU.
        threads: CPU threads that torch used.
        note: Anything a reader has to know.
    """

    suite: str
    op: str
    implementation: str
    graph: str
    nodes: int
    edges: int
    width: int
    dtype: str
    device: str
    ms: float
    ms_low: float
    ms_high: float
    torch: str
    commit: str
    date: str
    k: int | None = None
    against: str | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    gbps: float | None = None
    fraction: float | None = None
    ceiling: str | None = None
    rounds: int | None = None
    model: str | None = None
    layers: int | None = None
    peak_memory: int | None = None
    split: dict[str, float] | None = field(default=None, hash=False)
    precision: str | None = None
    time: str | None = None
    cuda: str | None = None
    driver: str | None = None
    machine: str | None = None
    threads: int | None = None
    note: str | None = None

    def to_json(self) -> str:
        """Returns the row as one line of JSON; every field is there, absent ones as null."""
        values = {name: _rounded(getattr(self, name)) for name in _NAMES}
        return json.dumps(values, allow_nan=False, separators=(", ", ": "))

    @property
    def when(self) -> tuple[str, str]:
        """Date and time, to tell the later of two rows."""
        return self.date, self.time or ""

    @property
    def key(self) -> tuple[object, ...]:
        """What makes two rows measurements of the same thing."""
        return tuple(getattr(self, name) for name in KEY)


#: The fields that name what was measured, in the order reports sort by.
KEY = (
    "suite", "op", "graph", "model", "layers", "width", "k", "dtype", "precision", "device",
    "implementation", "against",
)  # fmt: skip
_NAMES = tuple(f.name for f in fields(Row))
_REQUIRED = frozenset(
    f.name for f in fields(Row) if f.default is MISSING and f.default_factory is MISSING
)


def _rounded(value: object) -> object:
    """Seven significant digits: more than a clock gives, and lines that a reader can read."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return value


def from_json(text: str, where: str = "row") -> Row:
    """Returns the row that a line of JSON holds.

    Args:
        text: The line.
        where: How errors name the line, as ``file:line``.

    Raises:
        DataError: The line is no JSON object, lacks a field, or a field has the wrong type.
    """
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not a JSON object ({error.msg} at column {error.colno})"
        ) from None
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits, or thousands of brackets.
        raise DataError(f"{where}: not a JSON object ({error})") from None
    if not isinstance(values, dict):
        raise DataError(f"{where}: not a JSON object but {type(values).__name__}")
    return from_mapping(values, where)


def from_mapping(values: Mapping[str, Any], where: str = "row") -> Row:
    """Returns the row with these fields, checked; unknown fields are errors.

    Raises:
        DataError: A field is missing, unknown, of the wrong type or out of its range.
    """
    missing = sorted(_REQUIRED - values.keys())
    if missing:
        raise DataError(f"{where}: the row lacks {', '.join(missing)}")
    unknown = sorted(values.keys() - set(_NAMES))
    if unknown:
        raise DataError(f"{where}: the row has unknown fields {', '.join(unknown)}")
    for name, value in values.items():
        if not _fits(name, value):
            raise DataError(f"{where}: {name} must be {_describe(name)}, got {value!r}")
    row = Row(**values)
    if row.op not in OPS:
        raise DataError(f"{where}: op must be one of {', '.join(OPS)}, got {row.op!r}")
    for name in ("ms", "ms_low", "ms_high"):
        time = getattr(row, name)
        if not (math.isfinite(time) and time > 0):
            raise DataError(f"{where}: {name} must be a positive number, got {time}")
    if (row.against is None) != (row.ratio is None):
        raise DataError(f"{where}: against and ratio come together, got one without the other")
    return row


@cache
def _allowed(name: str) -> tuple[type, ...]:
    hint = get_type_hints(Row)[name]
    options = get_args(hint) if get_args(hint) and not hasattr(hint, "__origin__") else (hint,)
    return tuple(getattr(option, "__origin__", option) for option in options)


def _fits(name: str, value: object) -> bool:
    allowed = _allowed(name)
    if isinstance(value, bool):
        return bool in allowed
    if isinstance(value, int) and float in allowed:
        return True
    return isinstance(value, allowed)


def _describe(name: str) -> str:
    words = {str: "a text", int: "an integer", float: "a number", dict: "an object"}
    return " or ".join(words.get(option, "null") for option in _allowed(name))


def stamp(device: torch.device | str) -> dict[str, Any]:
    """Returns the fields of a row that say where and when it is measured."""
    facts = environment(device)
    names = ("device", "torch", "cuda", "driver", "commit", "date", "machine", "threads")
    return {name: facts[name] for name in names} | {
        "precision": torch.get_float32_matmul_precision(),
        "time": datetime.datetime.now(datetime.UTC).time().isoformat("seconds"),
    }


def slug(name: str) -> str:
    """Returns a device's name as a folder name: ``NVIDIA H200`` -> ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"


def results_path(root: Path, row: Row) -> Path:
    """Returns the file that a row belongs to: ``root/<device>/<date>-<commit>.jsonl``.

    A CPU's folder carries the processor's name, since ``cpu`` alone would mix machines.
    """
    device = f"cpu {row.machine or ''}" if row.device == "cpu" else row.device
    return root / slug(device) / f"{row.date}-{row.commit}.jsonl"


def append(rows: Iterable[Row], root: Path | str) -> list[Path]:
    """Appends rows to the files they belong to, and returns the files written."""
    groups: dict[Path, list[str]] = {}
    for row in rows:
        groups.setdefault(results_path(Path(root), row), []).append(row.to_json() + "\n")
    for path, lines in groups.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(lines))
    return list(groups)


def read(path: Path | str) -> Iterator[Row]:
    """Yields the rows of one file.

    Raises:
        DataError: The file is missing, or a line is no valid row; names the file and the line.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read ({error})") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield from_json(line, f"{file}:{number}")
