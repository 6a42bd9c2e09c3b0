"""What a person sees: progress and notes on stderr, results on stdout."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from maxk.train.loop import Epoch, Trainer
    from maxk.train.run import Watcher

#: Plain lines a run prints where there is no terminal.
LINES = 20


def say(console: Console, text: str) -> None:
    """Prints text as it is: not wrapped at the terminal's width, not read as markup."""
    console.print(text, soft_wrap=True, markup=False, highlight=False)


class _Notes(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        prefix = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        say(self._console, prefix + self.format(record))


@contextlib.contextmanager
def notes(console: Console, *, quiet: bool = False) -> Iterator[None]:
    """Shows what the library logs while inside; warnings only where ``quiet``."""
    logger = logging.getLogger("maxk")
    handler, level = _Notes(console), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@contextlib.contextmanager
def watched(*, quiet: bool = False) -> Iterator[Watcher]:
    """Yields a watcher that shows a run: a bar on a terminal, lines elsewhere, nothing if quiet."""
    from maxk.train.run import Watcher

    console = Console(stderr=True)
    with notes(console, quiet=quiet):
        if quiet:
            yield Watcher()
        elif console.is_terminal:
            with _bar(console) as watcher:
                yield watcher
        else:
            yield _lines(console)


@contextlib.contextmanager
def _bar(console: Console) -> Iterator[Watcher]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    from maxk.train.run import Watcher

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Remaining(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=console) as progress:
        tasks: dict[int, Any] = {}

        def on_start(trainer: Trainer) -> None:
            say(console, headline(trainer))
            tasks[id(trainer)] = progress.add_task(
                f"seed {trainer.config.seed}",
                total=trainer.config.epochs,
                completed=trainer.epoch,
                text="",
            )

        def on_epoch(trainer: Trainer, epoch: Epoch) -> None:
            text = f"loss {epoch.loss:.4f}  val {percent(epoch.val)}  test {percent(epoch.test)}"
            progress.update(tasks[id(trainer)], completed=epoch.epoch, text=text)

        yield Watcher(on_start=on_start, on_epoch=on_epoch)


def _lines(console: Console) -> Watcher:
    from maxk.train.run import Watcher

    def on_epoch(trainer: Trainer, epoch: Epoch) -> None:
        every = max(1, trainer.config.epochs // LINES)
        if epoch.epoch % every == 0 or epoch.epoch == 1 or trainer.finished:
            say(
                console,
                f"epoch {epoch.epoch}/{trainer.config.epochs}  loss {epoch.loss:.4f}  "
                f"train {percent(epoch.train)}  val {percent(epoch.val)}  "
                f"test {percent(epoch.test)}  {duration(epoch.seconds)}",
            )

    return Watcher(on_start=lambda trainer: say(console, headline(trainer)), on_epoch=on_epoch)


def headline(trainer: Trainer) -> str:
    """Returns one line on what is about to be trained."""
    from maxk.train.metrics import METRIC_NAMES

    data, config = trainer.dataset, trainer.config
    weights = sum(p.numel() for p in trainer.model.parameters())
    kept = f", k = {config.k}" if config.nonlinearity != "relu" else ""
    return (
        f"{data.name}: {data.graph.num_dst:,} nodes, {data.graph.num_edges:,} edges, "
        f"{data.x.shape[1]:,} features, {data.num_classes} classes; scored by "
        f"{METRIC_NAMES[data.metric]} (%). {config.model} with {config.nonlinearity}{kept}, "
        f"{config.layers} layers of {config.hidden}, {weights:,} weights, on {trainer.device}, "
        f"seed {config.seed}"
    )


def result_lines(summary: dict[str, Any]) -> list[str]:
    """Returns the result of a run in words."""
    from maxk.train.metrics import METRIC_NAMES

    several = "seeds" in summary
    metric = METRIC_NAMES[summary["metric"]]

    def value(name: str) -> str:
        text = f"{percent(summary[name])} %"
        return f"{text} ± {percent(summary[name + '_sd'])}" if several else text

    where = "the best validation epoch"
    if not several:
        where += f" ({summary['best_epoch']} of {summary['epochs']})"
    lines = [
        f"test {metric} {value('test')} at {where}, {value('test_last')} at the last; "
        f"validation {value('val')}"
    ]
    if several:
        lines[0] += f"; mean and sd of {len(summary['seeds'])} seeds"
    lines.append(f"{cost(summary)}; peak memory {size(summary['peak_memory'])}")
    return lines


def cost(summary: dict[str, Any]) -> str:
    """Returns the time of an epoch and, where it was measured, where it went."""
    seconds = summary["seconds_per_epoch"]
    text = f"{duration(seconds)} an epoch"
    if summary["seconds_rest"] is None or not seconds:
        return text
    parts = ", ".join(
        f"{name} {100 * summary[f'seconds_{name}'] / seconds:.0f} %"
        for name in ("select", "aggregate", "rest")
    )
    return f"{text} ({parts})"


def percent(fraction: float) -> str:
    """Returns a fraction in percent, two digits behind the point."""
    return f"{100 * fraction:.2f}"


def duration(seconds: float) -> str:
    """Returns seconds in a unit that keeps three digits readable."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s"


def size(count: int) -> str:
    """Returns bytes in binary units."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
