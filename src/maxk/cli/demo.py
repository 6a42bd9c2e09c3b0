"""``maxk demo``: MaxK and ReLU on real data that comes with an installed library."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from maxk.train.config import TrainConfig


def demo(
    epochs: Annotated[
        int, typer.Option(metavar="N", help="Most training steps of each model.")
    ] = 100,
    device: Annotated[
        str, typer.Option(metavar="TEXT", help="auto, cpu, cuda or cuda:N.")
    ] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for both runs; by default new ones under runs/."),
    ] = None,
) -> int:
    """Train the same model with MaxK and with ReLU on handwritten digits and compare them."""
    from maxk.train.config import TrainConfig

    configs = [
        TrainConfig(
            dataset="digits",
            nonlinearity=nonlinearity,
            epochs=epochs,
            patience=30,
            device=device,
            out=None if out is None else str(out / nonlinearity),
        )
        for nonlinearity in ("maxk", "relu")
    ]

    from rich.console import Console

    from maxk.cli import display
    from maxk.train.run import Interrupted, run

    results = []
    try:
        _compile_kernels(configs)
        for config in configs:
            with display.watched() as watcher:
                results.append(run(config, watcher))
    except Interrupted as stop:
        typer.echo("maxk: interrupted", err=True)
        return 128 + stop.signal
    Console().print(_table(results))
    for folder, _ in results:
        typer.echo(f"saved in {folder}")
    return 0


def _compile_kernels(configs: list[TrainConfig]) -> None:
    """Trains each model for one epoch that counts nowhere, so that no timed epoch compiles."""
    from maxk.train.loop import Trainer

    typer.echo("compiling kernels, once: later runs read them from the disk", err=True)
    start = time.perf_counter()
    for config in configs:
        Trainer(config).train_epoch()
    typer.echo(f"kernels ready after {time.perf_counter() - start:.1f} s", err=True)


def _table(results: list[tuple[Path, dict[str, Any]]]) -> Any:
    from rich.table import Table

    from maxk.cli.display import duration, percent

    first = results[0][1]
    table = Table(title=f"{first['dataset']}, {first['model']}, {first['layers']} layers of "
                        f"{first['hidden']}, on {first['device']}")  # fmt: skip
    for name in ("nonlinearity", "test accuracy", "an epoch", "select", "aggregate", "rest"):
        table.add_column(name, justify="left" if name == "nonlinearity" else "right")
    for _, summary in results:
        kept = f" (k = {summary['k']})" if summary["k"] else ""
        parts = [summary[f"seconds_{part}"] for part in ("select", "aggregate", "rest")]
        table.add_row(
            summary["nonlinearity"] + kept,
            f"{percent(summary['test'])} %",
            duration(summary["seconds_per_epoch"]),
            *("-" if part is None else duration(part) for part in parts),
        )
    return table
