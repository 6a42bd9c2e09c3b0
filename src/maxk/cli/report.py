"""``maxk report``: tables, comparisons and pictures of recorded rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup


class _PathsFirst(TyperGroup):
    """A group whose first word may be a path: ``report results`` is ``report page results``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        help_words = ("--help", "-h")
        if args and args[0] not in self.commands and args[0] not in help_words:
            args = ["page", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_PathsFirst,
    help="Tables, comparisons and pictures of recorded rows.",
    no_args_is_help=True,
)

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
    from maxk.bench.report.read import filter_rows, latest_rows
    from maxk.bench.report.table import insert, row_tables
    from maxk.core.errors import DataError

    rows = filter_rows(
        latest_rows(paths),
        suites=tuple(suite or ()),
        ops=tuple(op or ()),
        graphs=tuple(graph or ()),
        device=device,
        ks=tuple(k or ()),
        widths=tuple(width or ()),
        precision=precision,
    )
    text = row_tables(rows)
    if not text:
        raise DataError("no row is left to show; ask for fewer suites, operations or graphs")
    if into is None:
        typer.echo(text)
    else:
        insert(into, text)
        typer.echo(f"wrote {len(rows)} rows into {into}")


@app.command("page")
def page(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Folders or files of maxk bench and maxk sweep, folders of maxk train."
        ),
    ],
    html: Annotated[
        Path | None, typer.Option(help="Write one self-contained page with pictures.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write all rows as a table.")] = None,
    plots: Annotated[
        Path | None, typer.Option(help="Folder to draw every data set of a sweep into.")
    ] = None,
    into: Annotated[
        Path | None, typer.Option(help="Page to rewrite between its <!-- results --> marks.")
    ] = None,
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "maxk report",
) -> None:
    """Show everything that was recorded, as Markdown, CSV or an HTML page; 'page' may be left out.

    Of several run folders of maxk train, each is compared with the first.
    """
    from maxk.bench.report import sections as rooms
    from maxk.bench.report.html import html_page
    from maxk.bench.report.table import insert
    from maxk.bench.sweep.run import draw_study

    inputs = rooms.sort_paths(paths)
    found = rooms.sections(inputs)
    if html is not None:
        _write(html, html_page(title, found, rooms.pictures(inputs)))
    if csv is not None:
        _write(csv, rooms.to_csv(found))
    if plots is not None:
        for _, study in inputs.studies:
            for picture in draw_study(study, plots):
                typer.echo(f"wrote {picture}")
    text = "\n\n".join(f"## {section.title}\n\n{section.text}" for section in found)
    if into is not None:
        insert(into, "\n\n".join(section.text for section in found))
        typer.echo(f"wrote {into}")
    elif html is None and csv is None and plots is None:
        typer.echo(text)


def _write(path: Path, text: str) -> None:
    from maxk.core.errors import DataError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}; choose another file") from None
    typer.echo(f"wrote {path}")


@app.command("compare")
def compare(
    before: Annotated[Path, typer.Argument(help="Older result file or folder.")],
    after: Annotated[Path, typer.Argument(help="Newer result file or folder.")],
) -> None:
    """Say what got better, worse, or cannot be told apart: times, scores of a sweep, or runs."""
    from maxk.bench.report import compare as rooms
    from maxk.bench.report import sections, trained
    from maxk.bench.report.read import latest_rows
    from maxk.bench.sweep import tables as accuracy

    if trained.is_run(before) and trained.is_run(after):
        for line in trained.compare_runs(trained.read_run(before), trained.read_run(after)):
            typer.echo(line)
        return
    old, new = (sections.studies([path]) for path in (before, after))
    if old and new:
        typer.echo(accuracy.compare_sweeps(old[0][1].scores, new[0][1].scores))
        return
    changes = rooms.compare_rows(latest_rows([before]), latest_rows([after]))
    typer.echo(rooms.changes_table(changes))
    counts = {"better": 0, "worse": 0, "not distinguishable": 0}
    for change in changes:
        counts[change.outcome] += 1
    typer.echo("\n" + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))


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
    from maxk.bench.report.plot import draw_speedups
    from maxk.bench.report.read import filter_rows, latest_rows

    rows = filter_rows(
        latest_rows(paths),
        suites=tuple(suite or ()),
        ops=tuple(op or ()),
        graphs=tuple(graph or ()),
        device=device,
    )
    typer.echo(f"wrote {draw_speedups(rows, out, against=against)}")
