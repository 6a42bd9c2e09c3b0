"""``maxk profile``: will MaxK help on this graph, and at which k."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maxk.cli.words import integers

if TYPE_CHECKING:
    from maxk.bench.epochs.profile import EpochProfile, Profile

_OFF = "  [default: as in maxk train]"


def profile(
    dataset: Annotated[str, typer.Argument(metavar="NAME|PATH", show_default=False)],
    k: Annotated[
        list[str] | None,
        typer.Option("--k", help="Kept entries: 16,32 or repeated.  [default: 8 to 128]"),
    ] = None,
    model: Annotated[str | None, typer.Option(help="sage, gcn or gin." + _OFF)] = None,
    hidden: Annotated[
        int | None, typer.Option(metavar="N", help="Width of the hidden rows." + _OFF)
    ] = None,
    layers: Annotated[
        int | None, typer.Option(metavar="N", help="Number of graph layers." + _OFF)
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N." + _OFF)] = None,
    precision: Annotated[
        str | None, typer.Option(help="highest, high or medium, as torch means them." + _OFF)
    ] = None,
    undirected: Annotated[
        bool | None, typer.Option("--undirected", help="Add the reverse of every edge.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML file of maxk train's settings.")
    ] = None,
    budget: Annotated[float, typer.Option(help="Seconds for timing whole epochs.")] = 20.0,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Picture to write (.png, .svg, .pdf).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Measure what MaxK brings on a graph: share, ceiling, speed-up and memory for each k."""
    from maxk.train.config import TrainConfig

    flags = {
        "dataset": dataset, "model": model, "hidden": hidden, "layers": layers, "device": device,
        "precision": precision, "undirected": undirected,
    }  # fmt: skip
    given: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    # Each k is checked against the width below; the one in the file or the default plays no part.
    given["k"] = 1
    checked = TrainConfig(**given) if config is None else TrainConfig.from_toml(config, **given)

    from maxk.bench.epochs.profile import DEFAULT_KS, profile_data
    from maxk.bench.epochs.profile import profile as measure
    from maxk.train.setup import resolve_device

    ks = integers(k) or DEFAULT_KS
    resolve_device(checked.device)
    found = measure(checked, profile_data(checked), ks, budget_s=budget)
    if plot is not None:
        from maxk.bench.epochs.picture import draw_profile

        draw_profile(found, plot)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
        return 0
    _print(found)
    if plot is not None:
        typer.echo(f"wrote {plot}")
    return 0


def _print(found: Profile) -> None:
    from rich.console import Console
    from rich.table import Table

    from maxk.cli.display import say

    console = Console()
    console = console if console.is_terminal else Console(width=140)
    table = Table(box=None)
    names = ["", "an epoch", "20 % to 80 %", "select", "forward", "backward", "rest", "memory"]
    for name in [*names, "x predicted", "x achieved"]:
        table.add_column(name, justify="left" if name == "" else "right")
    for row in (found.relu, *found.maxk):
        table.add_row(*_cells(row))
    say(console, found.title)
    console.print(table)
    say(
        console,
        f"aggregation is {found.share:.0%} of ReLU's epoch; without it an epoch would be "
        f"{found.ceiling:.2f} times as fast",
    )
    say(console, found.advice)


def _cells(row: EpochProfile) -> list[str]:
    from maxk.cli.display import size
    from maxk.measure.words import digits

    tie = row.achieved_low is not None and row.achieved_low <= 1 <= (row.achieved_high or 0)
    return [
        row.label,
        f"{digits(row.ms)} ms",
        f"{digits(row.ms_low)} to {digits(row.ms_high)}",
        *(f"{digits(row.parts[part])} ms" for part in ("select", "forward", "backward", "rest")),
        size(row.memory),
        "" if row.predicted is None else f"{row.predicted:.2f}",
        "" if row.achieved is None else f"{'~' if tie else ''}{row.achieved:.2f}",
    ]
