"""``maxk fit``: how well MaxK and ReLU networks fit a function, over their width."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from maxk.bench.fit.run import Fit


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
    from maxk.bench.command import integers, one_of
    from maxk.bench.fit import run as approximation
    from maxk.bench.fit import tables as report
    from maxk.bench.report.table import insert
    from maxk.core.errors import DataError, MaxKError
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
    try:
        _write(out, fits, str(place))
    except OSError as error:
        raise DataError(
            f"cannot write {out}: {error.strerror}; choose another folder with --out"
        ) from None
    text = report.table(fits)
    typer.echo(text)
    if into is not None:
        insert(into, text)
    try:
        typer.echo(f"wrote {report.draw(fits, out / 'fit.png')}")
    except MaxKError as error:
        typer.echo(f"no picture: {error}")
    return 0


def _write(out: Path, fits: Sequence[Fit], device: str) -> None:
    import csv
    import json
    from dataclasses import asdict

    from maxk.measure.environment import environment

    facts = environment(device)
    told = {name: facts[name] for name in ("device", "torch", "commit", "date")}
    rows = [{**asdict(fit), **told} for fit in fits]
    out.mkdir(parents=True, exist_ok=True)
    (out / "fit.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with (out / "fit.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
