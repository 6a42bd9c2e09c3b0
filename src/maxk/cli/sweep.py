"""``maxk sweep``: accuracy and speed over k, on the data sets of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maxk.cli.words import integers, one_of

if TYPE_CHECKING:
    from maxk.bench.sweep.run import Study


def sweep(
    datasets: Annotated[
        list[str],
        typer.Argument(
            metavar="DATASET...", help="Names or paths, before the flags.", show_default=False
        ),
    ],
    k: Annotated[
        list[str] | None,
        typer.Option(
            "--k", metavar="N...", help="Kept entries.  [default: 2 4 8 16 32 64 96 128 192]"
        ),
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME...", help="Of sage, gcn, gin.  [default: all]"),
    ] = None,
    nonlinearity: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME...",
            help="Of maxk, maxk-grouped, fatrelu, dropout-relu; relu always comes along.  "
            "[default: maxk]",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each, with seeds from 0.")] = 10,
    groups: Annotated[
        int, typer.Option(min=1, help="Most blocks of columns of maxk-grouped.")
    ] = 32,
    recipes: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder of <dataset>-<model>.toml; else the defaults."),
    ] = Path("recipes"),
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE...",
            help="Settings of maxk train that win over the recipes, as layers=4 dropout=0.2.",
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="TEXT", help="auto, cpu, cuda or cuda:N.")
    ] = "auto",
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that train at a time, on the one device.")
    ] = 1,
    cuda_graph: Annotated[
        bool, typer.Option(help="On a GPU, replay whole epochs; the results stay the same.")
    ] = True,
    speed: Annotated[bool, typer.Option(help="Time the epochs, after the last run.")] = True,
    rounds: Annotated[int, typer.Option(min=3, help="Rounds of that timing.")] = 15,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of rows and pictures; it is continued.")
    ] = Path("results/accuracy"),
) -> int:
    """Train over k and seeds, beside ReLU; say the smallest k that is as good, and its speed.

    Every finished run is kept, and the same command goes on where it was stopped.
    """
    from rich.console import Console

    from maxk.bench.models import MODELS
    from maxk.bench.sweep import jobs, run
    from maxk.cli import display

    request = jobs.Request(
        datasets=tuple(datasets),
        ks=tuple(dict.fromkeys(integers(k))) or jobs.KS,
        models=tuple(dict.fromkeys(models or MODELS)),
        nonlinearities=tuple(dict.fromkeys(nonlinearity or ("maxk",))),
        seeds=seeds,
        groups=groups,
        recipes=recipes,
        device=device,
        overrides={**jobs.parse_overrides(settings or ()), "cuda_graph": cuda_graph},
    )
    one_of("models", request.models, MODELS)
    one_of("nonlinearity", request.nonlinearities, jobs.NONLINEARITIES)
    progress = Console(stderr=True)
    with display.notes(progress), _progress(progress) as on_run:
        study = run.sweep(
            request, out, workers=workers, time_epochs=speed, rounds=rounds, on_run=on_run
        )
    shown = Console()
    for sentence in study.sentences():
        display.say(shown, sentence)
    _draw(study, out, shown)
    if study.lost:
        typer.echo(f"maxk: {study.lost} runs were lost with their workers", err=True)
        return 1
    return 0


def _draw(study: Study, out: Path, console: Any) -> None:
    from maxk.bench.sweep import run
    from maxk.cli import display
    from maxk.core.errors import DataError, MaxKError

    try:
        for picture in run.draw_study(study, out):
            display.say(console, f"wrote {picture}")
    except DataError:
        raise
    except MaxKError as error:
        # The rows are what took the time; a picture can be drawn from them on any machine.
        display.say(console, f"no picture: {error}")


def _progress(console: Any) -> Any:
    """A bar on a terminal, some twenty lines elsewhere."""
    import contextlib
    from collections.abc import Callable, Iterator

    @contextlib.contextmanager
    def bar() -> Iterator[Callable[[int, int, Any], None]]:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        if not console.is_terminal:
            shown = 0

            def line(done: int, total: int, score: Any) -> None:
                nonlocal shown
                if done * 20 // total > shown or done == total:
                    shown = done * 20 // total
                    console.print(f"{done} of {total} runs", highlight=False)

            yield line
            return
        columns = ("runs", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("runs", total=None)

            def move(done: int, total: int, score: Any) -> None:
                progress.update(task, completed=done, total=total)

            yield move

    return bar()
