"""What ``maxk bench`` runs behind its flags: checks, progress, tables, and rows on disk."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from maxk.bench.kernels.cases import Case, cases
from maxk.core.errors import ConfigError
from maxk.measure.record import Row, append
from maxk.measure.words import digits, ratio_words
from maxk.train.setup import resolve_device

DTYPES = ("float32", "float64", "bfloat16", "float16")
OPS = ("forward", "backward", "maxk")
IMPLEMENTATIONS = ("auto", "cpu", "cuda", "reference")
PRECISIONS = ("highest", "high", "medium")
MODELS = ("sage", "gcn", "gin")
WIDE = 180


@dataclass(frozen=True)
class Request:
    """The flags that both benchmarks share, as the command line gave them."""

    suite: str
    device: str
    precision: str
    scale: float
    rounds: int
    budget: float
    out: Path

    def resolve(self) -> torch.device:
        """Returns the device, and sets torch's precision for the process."""
        one_of("precision", (self.precision,), PRECISIONS)
        torch.set_float32_matmul_precision(self.precision)
        return resolve_device(self.device)


@dataclass(frozen=True)
class Choice:
    """Which kernels are timed against whom; empty means all."""

    ops: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    implementations: tuple[str, ...] = ()
    dtype: str = "float32"


@dataclass(frozen=True)
class EpochChoice:
    """Which epochs are timed against whom; empty means all, None the suite's."""

    datasets: tuple[str, ...] = ()
    hidden: int | None = None
    layers: int | None = None
    implementations: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    limit_s: float | None = None


def integers(words: Sequence[str] | None, name: str = "k") -> tuple[int, ...]:
    """Returns the integers of ``["8,16", "32"]``.

    Raises:
        ConfigError: A word is no positive integer.
    """
    parts = [part for word in words or () for part in word.replace(",", " ").split()]
    for part in parts:
        if not part.isdecimal() or int(part) < 1:
            raise ConfigError(f"--{name} must be positive integers, as 8,16,32, got {part!r}")
    return tuple(map(int, parts))


def one_of(name: str, values: Iterable[str], allowed: Sequence[str]) -> None:
    """Raises ConfigError where a value is not among the allowed ones."""
    for value in values:
        if value not in allowed:
            raise ConfigError(f"--{name} must be one of {', '.join(allowed)}, got {value!r}")


def kernels(
    request: Request,
    *,
    ks: tuple[int, ...],
    widths: tuple[int, ...],
    graphs: tuple[str, ...],
    choice: Choice,
) -> None:
    """Runs ``maxk bench kernels``: appends rows after every k, prints a table at the end."""
    from maxk.bench.kernels import run
    from maxk.bench.kernels.comparators import comparators

    one_of("op", choice.ops, OPS)
    one_of("dtype", (choice.dtype,), DTYPES)
    one_of("implementation", choice.implementations, IMPLEMENTATIONS)
    one_of("against", choice.against, [c.name for c in comparators()])
    chosen = _cases(request, ks, widths, graphs)
    bench = run.KernelBench(
        suite=request.suite,
        cases=chosen,
        device=request.resolve(),
        dtype=getattr(torch, choice.dtype),
        ops=choice.ops or OPS,
        implementations=choice.implementations or ("auto",),
        against=choice.against,
        rounds=request.rounds,
        budget_s=request.budget,
    )
    console = _console()
    everything: list[Row] = []
    for rows in run.kernels(bench, console.print):
        append(rows, request.out)
        everything += rows
        for row in rows:
            if row.implementation in bench.implementations and row.against is not None:
                console.print(line(row), highlight=False)
    _finish(console, everything, bench.implementations, request.out)


def epochs(
    request: Request,
    *,
    ks: tuple[int, ...],
    models: tuple[str, ...],
    graphs: tuple[str, ...],
    choice: EpochChoice,
) -> None:
    """Runs ``maxk bench epoch``: appends rows after every k, prints a table at the end."""
    from maxk.bench.epochs import run as epoch

    one_of("models", models, MODELS)
    one_of("against", choice.against, epoch.CONTENDERS)
    one_of("implementation", choice.implementations, epoch.IMPLEMENTATIONS)
    bench = epoch.EpochBench(
        suite="dataset" if choice.datasets else request.suite,
        device=request.resolve(),
        ks=ks or (16, 32, 64),
        models=models or ("sage",),
        implementations=choice.implementations or ("auto",),
        against=choice.against,
        rounds=request.rounds,
        budget_s=request.budget,
    )
    # Each task is made when its turn comes: all graphs of a suite at once need tens of gigabytes.
    makers: dict[str, Callable[[], epoch.Task]] = {}
    if choice.datasets:
        for name in choice.datasets:
            width, depth = choice.hidden or 256, choice.layers or 3
            makers[name] = partial(epoch.dataset_task, name, width, depth, bench.device)
    else:
        for case in cases(request.suite, graphs=graphs, scale=request.scale):
            case = replace(case, layers=choice.layers or case.layers)
            width = choice.hidden or case.widths[-1]
            makers[case.graph] = partial(epoch.case_task, case, width, bench.device)
    console = _console()
    everything: list[Row] = []
    start = time.perf_counter()
    for name, make in makers.items():
        if choice.limit_s is not None and time.perf_counter() - start > choice.limit_s:
            console.print(f"not begun within {choice.limit_s:g} s: {name}")
            continue
        for rows in epoch.epochs(bench, make(), console.print):
            append(rows, request.out)
            everything += rows
            for row in rows:
                if row.implementation in epoch.IMPLEMENTATIONS and row.against is not None:
                    console.print(line(row), highlight=False)
            if choice.limit_s is not None and time.perf_counter() - start > choice.limit_s:
                break
        if bench.device.type == "cuda":
            # The next graph is larger or smaller: nothing of this one fits it.
            gc.collect()
            torch.cuda.empty_cache()
            torch.compiler.reset()
    _finish(console, everything, epoch.IMPLEMENTATIONS, request.out)


def _console() -> Console:
    """A terminal as it is; a file or pipe wide enough for every column."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDE)


def _cases(
    request: Request, ks: tuple[int, ...], widths: tuple[int, ...], graphs: tuple[str, ...]
) -> tuple[Case, ...]:
    chosen = cases(request.suite, graphs=graphs, scale=request.scale)
    chosen = tuple(replace(c, ks=ks or c.ks, widths=widths or c.widths) for c in chosen)
    for case in chosen:
        for width in case.widths:
            if not any(k <= width for k in case.ks):
                raise ConfigError(f"--k must hold a k up to D = {width}, got {case.ks}")
    return chosen


def line(row: Row) -> str:
    """Returns one comparison in words, as it appears while the benchmark runs."""
    what = row.op if row.model is None else f"{row.op} {row.model}"
    k = "" if row.k is None else f" k = {row.k}"
    words = f"{row.graph} D = {row.width}{k} {what}: {digits(row.ms)} ms"
    return f"{words}, x {row.against} {ratio_words(row).strip('*')}"


def _finish(
    console: Console, rows: Sequence[Row], implementations: tuple[str, ...], out: Path
) -> None:
    console.print(summary(rows, implementations))
    lost = [
        row
        for row in rows
        if row.implementation in implementations
        and row.ratio is not None
        and row.ratio < 1
        and (row.ratio_high is None or row.ratio_high < 1)
    ]
    compared = sum(row.implementation in implementations and row.ratio is not None for row in rows)
    console.print(f"slower than a contender in {len(lost)} of {compared} comparisons")
    console.print(f"{len(rows)} rows appended under {out}")


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
