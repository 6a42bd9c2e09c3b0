"""``maxk export``: a trained run for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", show_default=False)],
    to: Annotated[
        str,
        typer.Option(
            metavar="pyg|torch",
            help="pyg: weights and a Python file that needs PyG but not maxk; "
            "torch: a torch.export program on the run's graph.",
        ),
    ] = "pyg",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Default model.safetensors (pyg) or model.pt2 (torch)."),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(metavar="NAME|PATH", help="Data set, where it is not the one trained on."),
    ] = None,
) -> int:
    """Write the best weights of a run for PyG or for torch.export."""
    from maxk.core.errors import ConfigError
    from maxk.train.folder import open_run

    suffixes = {"pyg": ".safetensors", "torch": ".pt2"}
    if to not in suffixes:
        raise ConfigError(f"--to must be pyg or torch, got {to!r}")
    path = out or Path("model").with_suffix(suffixes[to])
    if path.suffix != suffixes[to]:
        raise ConfigError(f"--out must end in {suffixes[to]} with --to {to}, got {path}")
    named = {} if dataset is None else {"dataset": dataset}
    saved = open_run(run, device="cpu", **named)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if to == "pyg":
            from maxk.interop.export import export_pyg

            _, code = export_pyg(saved.model, path)
            typer.echo(f"weights in {path}, the network in {code}; to use them:")
            typer.echo(f"  from {code.stem} import load")
            typer.echo(f"  logits = load({str(path)!r})(data.x, data.edge_index)")
        else:
            import torch

            from maxk.interop.export import export_torch

            x, graph = saved.inputs
            torch.export.save(export_torch(saved.model, x.to_dense(), graph), path)
            typer.echo(f"program for {graph.num_src:,} nodes in {path}; to use it:")
            typer.echo("  import torch, maxk.ops.library")
            typer.echo(f"  logits = torch.export.load({str(path)!r}).module()(x)")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
    return 0
