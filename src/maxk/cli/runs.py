"""``maxk evaluate`` and ``maxk predict``: what a saved run is good for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", show_default=False)]
Data = Annotated[
    str | None,
    typer.Option(metavar="NAME|PATH", help="Data set, where it is not the one trained on."),
]
Device = Annotated[str, typer.Option(metavar="TEXT", help="auto, cpu, cuda or cuda:N.")]


def evaluate(
    run: Run,
    dataset: Data = None,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Score the best weights of a run on its training, validation and test nodes."""
    trainer = _open(run, dataset, device)
    scores = trainer.evaluate()
    if as_json:
        typer.echo(json.dumps({"metric": trainer.dataset.metric, **scores}))
        return 0
    from maxk.cli.display import percent
    from maxk.train.metrics import METRIC_NAMES

    values = ", ".join(f"{name} {percent(value)} %" for name, value in scores.items())
    typer.echo(f"{METRIC_NAMES[trainer.dataset.metric]} on {trainer.dataset.name}: {values}")
    return 0


def predict(
    run: Run,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the predictions go (.npz).")
    ] = Path("predictions.npz"),
    dataset: Data = None,
    device: Device = "auto",
) -> int:
    """Write the predictions of a run for every node: arrays 'prediction' and 'logits'."""
    import io

    import numpy as np

    trainer = _open(run, dataset, device)
    logits = trainer.predict()
    # As in scoring: several labels where the logit is positive, otherwise the largest one.
    prediction = logits > 0 if trainer.dataset.multi_label else logits.argmax(dim=1)
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer, prediction=prediction.cpu().numpy(), logits=logits.float().cpu().numpy()
    )
    from maxk.train.checkpoint import write_file

    write_file(out, buffer.getvalue())
    typer.echo(f"{logits.shape[0]:,} predictions saved in {out}")
    return 0


def _open(run: Path, dataset: str | None, device: str) -> Any:
    from maxk.train.run import open_run

    named = {} if dataset is None else {"dataset": dataset}
    return open_run(run, device=device, **named)
