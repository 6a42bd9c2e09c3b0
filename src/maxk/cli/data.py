"""``maxk data``: which data sets there are and what is in one."""

from __future__ import annotations

import json
from typing import Annotated

import typer

app = typer.Typer(help="Look at data sets.", no_args_is_help=True)


@app.command("list")
def names() -> int:
    """List the names that --dataset takes beside the path of a file."""
    from maxk.core.settings import settings
    from maxk.data.load import NAMES

    folder = settings().data_dir
    for name in NAMES:
        typer.echo(name)
    for path in sorted(folder.glob("*.npz")):
        typer.echo(f"{path.stem}  ({path})")
    return 0


@app.command("describe")
def describe(
    dataset: Annotated[str, typer.Argument(metavar="NAME|PATH", show_default=False)],
    undirected: Annotated[
        bool, typer.Option("--undirected", help="Add the reverse of every edge that lacks it.")
    ] = False,
    self_loops: Annotated[
        bool, typer.Option("--self-loops", help="Add the self-loops that the graph lacks.")
    ] = False,
    hidden: Annotated[int, typer.Option(metavar="N", help="Width to estimate memory for.")] = 256,
    layers: Annotated[int, typer.Option(metavar="N", help="Layers to estimate memory for.")] = 3,
    k: Annotated[int, typer.Option(metavar="N", help="Kept entries to estimate memory for.")] = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Show sizes, degrees, self-loops, duplicates, homophily, and the memory a run would need."""
    from maxk.train.config import TrainConfig

    # The ranges are those of a run.
    TrainConfig(hidden=hidden, layers=layers, k=k)
    from maxk.data.describe import describe as look

    facts = look(
        dataset,
        hidden=hidden,
        layers=layers,
        k=k,
        undirected=undirected,
        self_loops=self_loops,
    )
    typer.echo(json.dumps(facts.to_dict(), indent=2) if as_json else facts.to_text())
    return 0
