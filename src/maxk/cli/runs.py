"""``maxk evaluate`` and ``maxk predict``: what a saved run is good for."""

from __future__ import annotations

import csv
import io
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
    from maxk.cli.display import percent
    from maxk.train.folder import seed_folders
    from maxk.train.metrics import METRIC_NAMES

    results = []
    for folder in seed_folders(run):
        trainer = _open(folder, dataset, device)
        results.append({"run": str(folder), "metric": trainer.dataset.metric, **trainer.evaluate()})
    if as_json:
        typer.echo(json.dumps(results[0] if len(results) == 1 else results))
        return 0
    for result in results:
        values = ", ".join(f"{name} {percent(result[name])} %" for name in ("train", "val", "test"))
        typer.echo(f"{result['run']}: {METRIC_NAMES[result['metric']]} {values}")
    return 0


def predict(
    run: Run,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the predictions go: .npz or .csv.")
    ] = Path("predictions.npz"),
    dataset: Data = None,
    device: Device = "auto",
) -> int:
    """Write the predictions of a run for every node, and the logits that they come from.

    A .npz file holds the arrays 'prediction' and 'logits', a .csv file one line per node.
    """
    from maxk.core.errors import ConfigError

    kind = out.suffix.lower()
    if kind not in (".npz", ".csv"):
        raise ConfigError(f"--out must end in .npz or .csv, got {out}; for example predictions.csv")
    trainer = _open(run, dataset, device)
    logits = trainer.predict()
    # As in scoring: several labels where the logit is positive, otherwise the largest one.
    several = trainer.dataset.multi_label
    prediction = (logits > 0 if several else logits.argmax(dim=1)).cpu().numpy()
    from maxk.train.checkpoint import write_file

    write = _npz if kind == ".npz" else _csv
    write_file(out, write(prediction, logits.float().cpu().numpy()))
    typer.echo(f"{logits.shape[0]:,} predictions saved in {out}")
    return 0


def _npz(prediction: Any, logits: Any) -> bytes:
    import numpy as np

    buffer = io.BytesIO()
    np.savez_compressed(buffer, prediction=prediction, logits=logits)
    return buffer.getvalue()


def _csv(prediction: Any, logits: Any) -> bytes:
    labels = range(logits.shape[1])
    names = [f"label_{c}" for c in labels] if prediction.ndim == 2 else ["prediction"]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["node", *names, *(f"logit_{c}" for c in labels)])
    classes = prediction.reshape(len(prediction), -1).astype(int).tolist()
    for node, (predicted, row) in enumerate(zip(classes, logits, strict=True)):
        # The shortest text that reads back as the same float32.
        writer.writerow([node, *predicted, *map(str, row)])
    return text.getvalue().encode()


def _open(run: Path, dataset: str | None, device: str) -> Any:
    from rich.console import Console

    from maxk.cli.display import notes
    from maxk.train.folder import open_run

    named = {} if dataset is None else {"dataset": dataset}
    with notes(Console(stderr=True)):
        return open_run(run, device=device, **named)
