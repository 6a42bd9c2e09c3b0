"""``maxk bench``: the operations, and whole epochs, against what a user would run instead."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Measure against what a user would run instead: correct first, then interleaved.",
    no_args_is_help=True,
)

_Suite = Annotated[str, typer.Option(help="quick, cpu, paper or paper24.")]
_Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
_K = Annotated[list[str] | None, typer.Option("--k", help="Kept entries: 16,32 or repeated.")]
_Graphs = Annotated[list[str] | None, typer.Option("--graph", help="Only this graph (repeat).")]
_Scale = Annotated[float, typer.Option(help="Multiplies nodes and edges of the graphs.")]
_Rounds = Annotated[int, typer.Option(min=1, help="Rounds of each timing, at most.")]
_Budget = Annotated[float, typer.Option(help="Seconds of each timing, with 3 rounds at least.")]
_Precision = Annotated[str, typer.Option(help="highest, high or medium, as torch means them.")]
_Out = Annotated[Path, typer.Option(help="Folder that rows are appended to.")]


@app.command("kernels")
def kernels(
    suite: _Suite = "quick",
    device: _Device = "auto",
    k: _K = None,
    width: Annotated[list[int] | None, typer.Option(help="D instead of the suite's.")] = None,
    graph: _Graphs = None,
    op: Annotated[
        list[str] | None, typer.Option(help="Only forward, backward or maxk (repeat).")
    ] = None,
    against: Annotated[
        list[str] | None, typer.Option(help="Only this comparator (repeat); default all.")
    ] = None,
    implementation: Annotated[
        list[str] | None, typer.Option(help="Ours: auto, cpu, cuda or reference (repeat).")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, float64, bfloat16 or float16.")] = "float32",
    precision: _Precision = "highest",
    scale: _Scale = 1.0,
    rounds: _Rounds = 9,
    budget: _Budget = 20.0,
    out: _Out = Path("results"),
) -> None:
    """Time forward, backward and MaxK on seeded graphs, gated by a float64 reference."""
    from maxk.bench import command

    command.kernels(
        command.Request(suite, device, precision, scale, rounds, budget, out),
        ks=command.integers(k),
        widths=tuple(width or ()),
        graphs=tuple(graph or ()),
        choice=command.Choice(
            ops=tuple(op or ()),
            against=tuple(against or ()),
            implementations=tuple(implementation or ()),
            dtype=dtype,
        ),
    )


@app.command("epoch", context_settings={"allow_extra_args": True})
def epoch(
    context: typer.Context,
    suite: _Suite = "quick",
    models: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME...", help="sage, gcn, gin: several words, or repeated."),
    ] = None,
    device: _Device = "auto",
    k: _K = None,
    graph: _Graphs = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="A data set's name or path instead of a suite (repeat)."),
    ] = None,
    hidden: Annotated[int | None, typer.Option(help="Hidden width; default the suite's.")] = None,
    layers: Annotated[int | None, typer.Option(help="Convolutions; default the suite's.")] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="Only relu-compiled, relu-eager, pyg-csr, topk-mask or dgl (repeat); default all."
        ),
    ] = None,
    implementation: Annotated[
        list[str] | None,
        typer.Option(help="Ours: auto, eager or compiled (repeat); default auto."),
    ] = None,
    precision: _Precision = "high",
    scale: _Scale = 1.0,
    rounds: _Rounds = 9,
    budget: _Budget = 10.0,
    limit: Annotated[
        float | None, typer.Option(help="Seconds after which no further k or graph is begun.")
    ] = None,
    out: _Out = Path("results"),
) -> None:
    """Time whole training epochs: ours, and what a user would run instead."""
    from maxk.bench import command

    command.epochs(
        command.Request(suite, device, precision, scale, rounds, budget, out),
        ks=command.integers(k),
        models=(*(models or ()), *context.args),
        graphs=tuple(graph or ()),
        choice=command.EpochChoice(
            datasets=tuple(dataset or ()),
            hidden=hidden,
            layers=layers,
            implementations=tuple(implementation or ()),
            against=tuple(against or ()),
            limit_s=limit,
        ),
    )
