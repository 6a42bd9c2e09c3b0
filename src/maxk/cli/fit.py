"""``maxk fit``: how well MaxK and ReLU networks fit a function, over their width."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maxk.cli.words import integers, one_of


def fit(
    function: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME...", help="Of square, sin, abs, surface.  [default: all]"),
    ] = None,
    widths: Annotated[
        list[str] | None,
        typer.Option(metavar="N...", help="Hidden units.  [default: 4 8 16 32 64 128]"),
    ] = None,
    k: Annotated[
        list[str] | None,
        typer.Option(
            "--k",
            metavar="K...",
            help="What MaxK keeps: a share of the width, rounded up, or a number.  "
            "[default: 1/4 1/2 2]",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Networks of each kind.")] = 5,
    steps: Annotated[int, typer.Option(min=1, help="Steps of Adam.")] = 2000,
    device: Annotated[
        str, typer.Option(metavar="TEXT", help="auto, cpu, cuda or cuda:N.")
    ] = "auto",
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of fit.jsonl, fit.csv and fit.png.")
    ] = Path("results/approximation"),
    into: Annotated[
        Path | None, typer.Option(help="Page to rewrite between its <!-- results --> marks.")
    ] = None,
) -> int:
    """Fit functions with one hidden layer of MaxK and of ReLU; print and draw the errors."""
    from maxk.bench.fit import run as approximation
    from maxk.bench.fit import tables as report
    from maxk.bench.report.table import insert
    from maxk.core.errors import MaxKError
    from maxk.train.setup import resolve_device

    functions = tuple(dict.fromkeys(function or approximation.FUNCTIONS))
    one_of("function", functions, tuple(approximation.FUNCTIONS))
    rules = [None, *map(approximation.Rule.parse, dict.fromkeys(k or ("1/4", "1/2", "2")))]
    place = resolve_device(device)
    fits = []
    for name in functions:
        for width in integers(widths, "widths") or (4, 8, 16, 32, 64, 128):
            for rule in rules:
                fits += approximation.fit(name, width, rule, seeds=seeds, steps=steps, device=place)
        typer.echo(f"fitted {name}", err=True)
    approximation.write(out, fits)
    text = report.error_table(fits)
    typer.echo(text)
    if into is not None:
        insert(into, text)
    try:
        typer.echo(f"wrote {report.draw_errors(fits, out / 'fit.png')}")
    except MaxKError as error:
        typer.echo(f"no picture: {error}")
    return 0
