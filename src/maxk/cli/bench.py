"""``maxk bench``: the operations, and whole epochs, against what a user would run instead."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from maxk.cli.words import integers, one_of

if TYPE_CHECKING:
    import torch

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
    import torch

    from maxk.bench import show
    from maxk.bench.kernels import run
    from maxk.bench.kernels.cases import cases
    from maxk.bench.kernels.comparators import comparators

    ops, ours, others = tuple(op or ()), tuple(implementation or ()), tuple(against or ())
    one_of("op", ops, run.OPS)
    one_of("dtype", (dtype,), run.DTYPES)
    one_of("implementation", ours, run.IMPLEMENTATIONS)
    one_of("against", others, (c.name for c in comparators()))
    chosen = cases(
        suite, graphs=tuple(graph or ()), scale=scale, ks=integers(k), widths=tuple(width or ())
    )
    bench = run.KernelBench(
        suite=suite,
        cases=chosen,
        device=_prepare(device, precision),
        dtype=getattr(torch, dtype),
        ops=ops or run.OPS,
        implementations=ours or ("auto",),
        against=others,
        rounds=rounds,
        budget_s=budget,
    )
    show.follow(lambda say: run.kernels(bench, say), bench.implementations, out)


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
    from maxk.bench import show
    from maxk.bench.epochs import run
    from maxk.bench.kernels.cases import cases
    from maxk.bench.models import MODELS

    ours, others = tuple(implementation or ()), tuple(against or ())
    names = (*(models or ()), *context.args)
    one_of("models", names, MODELS)
    one_of("against", others, run.CONTENDERS)
    one_of("implementation", ours, run.IMPLEMENTATIONS)
    bench = run.EpochBench(
        suite="dataset" if dataset else suite,
        device=_prepare(device, precision),
        ks=integers(k) or (16, 32, 64),
        models=names or ("sage",),
        implementations=ours or ("auto",),
        against=others,
        rounds=rounds,
        budget_s=budget,
    )
    if dataset:
        tasks = run.dataset_tasks(dataset, bench.device, hidden=hidden, layers=layers)
    else:
        chosen = cases(suite, graphs=tuple(graph or ()), scale=scale)
        tasks = run.suite_tasks(chosen, bench.device, hidden=hidden, layers=layers)
    show.follow(lambda say: run.all_epochs(bench, tasks, say, limit), run.IMPLEMENTATIONS, out)


def _prepare(device: str, precision: str) -> torch.device:
    """Returns the device, and sets torch's precision for the process."""
    import torch

    from maxk.train.setup import resolve_device

    one_of("precision", (precision,), ("highest", "high", "medium"))
    torch.set_float32_matmul_precision(precision)
    return resolve_device(device)
