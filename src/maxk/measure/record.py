"""What one measured number is: a row, one JSON object per line.

Rows are appended to ``results/<device>/<date>-<commit>.jsonl`` and never rewritten. A row without
``against`` is a contender's own time; a row with ``against`` compares the implementation with that
contender, timed in the same rounds of the same process.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

from maxk.measure import rows as store
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
        k: Kept entries per row; None where the operation has none.
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
        ceiling: Which accesses: ``copy`` of its bytes, ``gather`` of one row per edge, or
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

    #: Digits of a number on disk: more than a clock gives, and lines that a reader can read.
    SIGNIFICANT: ClassVar[int] = 7

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

    def check(self) -> str | None:
        """Returns what is wrong with the row, or None."""
        if self.op not in OPS:
            return f"op must be one of {', '.join(OPS)}, got {self.op!r}"
        for name in ("ms", "ms_low", "ms_high"):
            time = getattr(self, name)
            if not (math.isfinite(time) and time > 0):
                return f"{name} must be a positive number, got {time}"
        if (self.against is None) != (self.ratio is None):
            return "against and ratio come together, got one without the other"
        return None

    @property
    def when(self) -> tuple[str, str]:
        """Date and time, to find the later of two rows."""
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


def append_results(rows: Iterable[Row], root: Path | str) -> list[Path]:
    """Appends rows to the files they belong to, and returns the files written.

    Raises:
        DataError: A file cannot be written.
    """
    groups: dict[Path, list[Row]] = {}
    for row in rows:
        groups.setdefault(results_path(Path(root), row), []).append(row)
    for path, members in groups.items():
        store.append(path, members)
    return list(groups)
