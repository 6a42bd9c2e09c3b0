"""``maxk data``: which data sets there are and what is in one."""

from __future__ import annotations

import json
import shlex
from typing import Annotated

import typer

SOURCES = {"pyg": "PyG", "ogb": "OGB"}
METRIC_WORDS = {"accuracy": "accuracy", "micro_f1": "micro-F1", "roc_auc": "ROC AUC"}

app = typer.Typer(help="Look at data sets.", no_args_is_help=True)


@app.command("list")
def names(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """List the names that --dataset takes beside the path of a file."""
    from maxk.core.settings import settings
    from maxk.data.catalog import BUILT_IN, catalog

    folder = settings().data_dir
    here = {entry.name: not entry.missing(folder) for entry in catalog().values()}
    files = sorted(folder.glob("*.npz"))
    if as_json:
        rows = [{**entry.to_dict(), "here": here[entry.name]} for entry in catalog().values()]
        listed = {"built_in": list(BUILT_IN), "files": [str(f) for f in files], "catalog": rows}
        typer.echo(json.dumps(listed, indent=2))
        return 0

    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    numbers = ("nodes", "edges", "features", "classes")
    words = ("scored by", "split", "licence", "from", "here")
    for name in ("name", *numbers, *words):
        table.add_column(name, justify="right" if name in numbers else "left", no_wrap=True)
    blank = [""] * (len(numbers) + 3)
    for name, told in BUILT_IN.items():
        table.add_row(name, *blank, told, "yes")
    for path in files:
        table.add_row(path.stem, *blank, "file", "yes")
    for entry in catalog().values():
        table.add_row(
            entry.name,
            *(_count(v) for v in (entry.nodes, entry.edges, entry.features, entry.classes)),
            METRIC_WORDS[entry.metric],
            entry.split,
            entry.licence or "unknown",
            SOURCES[entry.source],
            "yes" if here[entry.name] else "no",
        )
    console = Console()
    console = console if console.is_terminal else Console(width=150)
    console.print(table, markup=False, highlight=False)
    typer.echo(
        f"'maxk data show NAME' tells more; files come first, and what is not here is fetched into "
        f"{folder}/"
    )
    return 0


@app.command("show")
def show(
    dataset: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Show what is known of a data set of the catalog, and where its files belong."""
    from maxk.core.errors import DataError
    from maxk.core.settings import settings
    from maxk.data.catalog import EXTRAS, find, nearest

    entry = find(dataset)
    if entry is None:
        near = nearest(dataset)
        raise DataError(
            f"the catalog holds no {dataset!r}"
            + (f"; did you mean {near}?" if near else "; its names: maxk data list")
            + f" (maxk data describe {shlex.quote(dataset)} looks into a file)"
        )
    folder = settings().data_dir
    missing = entry.missing(folder)
    if as_json:
        typer.echo(json.dumps({**entry.to_dict(), "missing": missing}, indent=2))
        return 0
    kind = "multi-label" if entry.multi_label else "single-label"
    module, extra = EXTRAS[entry.source]
    arguments = "".join(f", {name}={value!r}" for name, value in entry.arguments.items())
    rows = {
        "name": entry.name,
        "nodes": _count(entry.nodes),
        "edges": f"{_count(entry.edges)}, directed",
        "features": _count(entry.features),
        "classes": f"{_count(entry.classes)} ({kind}), scored by {METRIC_WORDS[entry.metric]}",
        "split": entry.split,
        "licence": entry.licence or "unknown",
        "download": "unknown" if entry.download is None else f"{entry.download / 1e6:,.0f} MB",
        "loaded by": f'{module}: {entry.loader}(root{arguments}); pip install "{extra}"',
        "published": entry.page,
        "SHA-256": entry.sha256 or "unknown",
        "folder": f"{folder / entry.folder}/",
        "files": ", ".join(f"{f} (missing)" if f in missing else f for f in entry.files),
    }
    if entry.pickles:
        rows["careful"] = "the files are Python pickles, which can run code when they are read"
    if entry.remark:
        rows["note"] = entry.remark
    width = max(map(len, rows))
    for name, text in rows.items():
        typer.echo(f"{name:<{width}}  {text}")
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


def _count(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"
