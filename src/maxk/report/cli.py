"""``maxk report``: tables, comparisons and pictures of recorded rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Tables, comparisons and pictures of recorded rows.", no_args_is_help=True)

_Paths = Annotated[list[Path], typer.Argument(help="Result files, or folders of them.")]
_Suites = Annotated[list[str] | None, typer.Option("--suite", help="Only this suite (repeat).")]
_Ops = Annotated[list[str] | None, typer.Option("--op", help="Only this operation (repeat).")]
_Graphs = Annotated[list[str] | None, typer.Option("--graph", help="Only this graph (repeat).")]
_Ks = Annotated[
    list[int] | None, typer.Option("--k", help="Only this number of kept entries (repeat).")
]
_Widths = Annotated[list[int] | None, typer.Option("--width", help="Only this width D (repeat).")]
_Precision = Annotated[str | None, typer.Option(help="Only this precision: highest, high, medium.")]
_Device = Annotated[str | None, typer.Option(help="Only devices whose name holds this.")]


@app.command("table")
def table(
    paths: _Paths,
    suite: _Suites = None,
    op: _Ops = None,
    graph: _Graphs = None,
    device: _Device = None,
    k: _Ks = None,
    width: _Widths = None,
    precision: _Precision = None,
    into: Annotated[
        Path | None,
        typer.Option(help="Page to rewrite between its <!-- results --> marks; else stdout."),
    ] = None,
) -> None:
    """Print Markdown tables of the latest rows, losses included."""
    from maxk.core.errors import DataError
    from maxk.report.read import read, select
    from maxk.report.table import insert, tables

    rows = select(
        read(paths),
        suites=tuple(suite or ()),
        ops=tuple(op or ()),
        graphs=tuple(graph or ()),
        device=device,
        ks=tuple(k or ()),
        widths=tuple(width or ()),
        precision=precision,
    )
    text = tables(rows)
    if not text:
        raise DataError("no row is left to show; ask for fewer suites, operations or graphs")
    if into is None:
        typer.echo(text)
    else:
        insert(into, text)
        typer.echo(f"wrote {len(rows)} rows into {into}")


@app.command("compare")
def compare(
    before: Annotated[Path, typer.Argument(help="Older result file or folder.")],
    after: Annotated[Path, typer.Argument(help="Newer result file or folder.")],
) -> None:
    """Say what got better, worse, or stayed inside the spread."""
    from maxk.report import compare as rooms
    from maxk.report.read import read

    changes = rooms.compare(read([before]), read([after]))
    typer.echo(rooms.table(changes))
    counts = {"better": 0, "worse": 0, "not distinguishable": 0}
    for change in changes:
        counts[change.verdict] += 1
    typer.echo("\n" + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))


@app.command("plot")
def plot(
    paths: _Paths,
    out: Annotated[Path, typer.Option(help="Picture to write.")] = Path("speedup.png"),
    against: Annotated[str, typer.Option(help="The contender.")] = "torch.sparse",
    suite: _Suites = None,
    op: _Ops = None,
    graph: _Graphs = None,
    device: _Device = None,
) -> None:
    """Draw the speed-up against k."""
    from maxk.report.plot import plot as draw
    from maxk.report.read import read, select

    rows = select(
        read(paths),
        suites=tuple(suite or ()),
        ops=tuple(op or ()),
        graphs=tuple(graph or ()),
        device=device,
    )
    typer.echo(f"wrote {draw(rows, out, against=against)}")
