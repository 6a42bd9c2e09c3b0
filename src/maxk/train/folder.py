"""The folder of a run: what lies where in it, made new, opened again, written to.

A run folder holds::

    config.toml          the settings; 'maxk train --config' and '--resume' read it
    environment.json     versions, machine, commit, threads, device
    epochs.jsonl         one JSON object an epoch
    metrics.csv          the same as a table, with --log csv
    tensorboard/         the same as curves, with --log tensorboard
    best.safetensors     weights of the best validation epoch
    last.safetensors     weights of the last epoch saved
    state.pt             all that resuming needs; state.previous.pt is the one before it
    summary.json         the result

With several seeds the files from epochs.jsonl on lie in seed-0, seed-1, ..., and summary.json
holds the mean and the spread.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from maxk.core.errors import CheckpointError, ConfigError
from maxk.data.dataset import Dataset
from maxk.train import checkpoint
from maxk.train.checkpoint import cannot_write, write_file
from maxk.train.config import TrainConfig, flag
from maxk.train.loop import Trainer

log = logging.getLogger(__name__)

CONFIG = "config.toml"
ENVIRONMENT = "environment.json"
EPOCHS = "epochs.jsonl"
SUMMARY = "summary.json"

#: Settings that may differ when a run is continued.
RESUMABLE = frozenset(
    {
        "dataset",
        "features",
        "labels",
        "other_data",
        "device",
        "cuda_graph",
        "epochs",
        "patience",
        "log",
        "quiet",
    }
)


def saved_config(folder: str | Path) -> TrainConfig:
    """Returns the settings that a run folder was made with.

    Raises:
        CheckpointError: the folder holds no run, or its settings cannot be read.
    """
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise CheckpointError(f"{folder} is no run folder: it holds no {CONFIG}")
    try:
        return TrainConfig.from_toml(path)
    except ConfigError as error:
        raise CheckpointError(f"{path} is not the settings of a run: {error}") from error


def resumed_config(folder: str | Path, **overrides: object) -> TrainConfig:
    """Returns the settings that continue a run.

    Args:
        folder: The run folder.
        **overrides: By field name; only those in :data:`RESUMABLE` may differ.

    Raises:
        CheckpointError: the folder holds no run.
        ConfigError: a setting is to differ that would make it another run.
    """
    saved = saved_config(folder)
    if "out" in overrides:
        raise ConfigError(f"--out cannot go with --resume: the run continues in {folder}")
    for name, value in overrides.items():
        if name not in RESUMABLE and value != getattr(saved, name):
            raise ConfigError(
                f"{flag(name)} cannot change with --resume: {folder} was trained with "
                f"{getattr(saved, name)!r}, got {value!r}; start a new run instead"
            )
    return replace(saved, **{**overrides, "resume": str(folder)})  # type: ignore[arg-type]


def seed_folders(folder: str | Path) -> list[Path]:
    """Returns the folders that hold weights: one for each seed, or the run folder itself."""
    folder = Path(folder)
    inner = [p for p in folder.glob("seed-*") if re.fullmatch(r"seed-\d+", p.name)]
    return sorted(inner, key=lambda p: int(p.name[5:])) or [folder]


def open_run(folder: str | Path, **overrides: object) -> Trainer:
    """Returns a trainer that holds the best weights of a saved run.

    Args:
        folder: A run folder; with several seeds, that of one of them (``RUN/seed-0``).
        **overrides: ``dataset`` and ``device``, where they differ from those of training.

    Raises:
        CheckpointError: the folder holds no run or its weights are broken.
    """
    folder = Path(folder)
    weights = folder / checkpoint.BEST
    seeds = seed_folders(folder)
    if seeds != [folder]:
        raise CheckpointError(
            f"{folder} holds {len(seeds)} seeds; name one of them, for example "
            f"{shlex.quote(str(seeds[0]))}"
        )
    # The settings of a seed lie one floor up.
    match = re.fullmatch(r"seed-(\d+)", folder.name)
    config = saved_config(folder.parent if match else folder)
    if match:
        config = replace(config, seed=int(match[1]), seeds=1)
    # A run made on a GPU opens on a machine without one.
    config = replace(config, **{"device": "auto", **overrides})  # type: ignore[arg-type]
    if not weights.exists():
        raise CheckpointError(f"{folder} holds no {checkpoint.BEST}; train it first")
    tensors, about = checkpoint.read_weights(weights)
    trainer = Trainer(config)
    trainer.load_weights(tensors)
    before = about.get("contents")
    if before is not None and (parts := checkpoint.changed_parts(before, trainer.contents)):
        log.info(
            "%s has other %s than the data that %s was trained on",
            trainer.dataset.name,
            parts,
            folder,
        )
    return trainer


def new_folder(config: TrainConfig, dataset: Dataset) -> Path:
    """Makes the folder of a run: that of ``out``, or a new one under ``runs``.

    Raises:
        ConfigError: ``out`` holds a run or other files.
        CheckpointError: it cannot be made.
    """
    if config.out is not None:
        folder = Path(config.out)
        if (folder / CONFIG).exists():
            raise ConfigError(
                f"--out {folder} already holds a run; continue it with "
                f"--resume {shlex.quote(str(folder))} or choose another folder"
            )
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"--out {folder} must be a new or empty folder; it holds other files")
        make_folder(folder)
        return folder
    kept = f"-k{config.k}" if config.nonlinearity != "relu" else ""
    name = f"{dataset.name}-{config.model}-{config.nonlinearity}{kept}"
    name = re.sub(r"[^\w.-]+", "_", name)
    number = 1
    while True:
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise CheckpointError(cannot_write(folder, error)) from error
        else:
            return folder


def remove_failed(folder: Path) -> None:
    """Takes back a folder whose first epoch failed, so that nothing half-made stays."""
    for path in dict.fromkeys((*seed_folders(folder), folder)):
        for name in (CONFIG, ENVIRONMENT, EPOCHS):
            (path / name).unlink(missing_ok=True)
        path.rmdir()


def portable(config: TrainConfig) -> TrainConfig:
    """Makes paths whole, so that the run opens from every working directory."""

    def whole(path: str) -> str:
        return str(Path(path).resolve()) if Path(path).is_file() else path

    return replace(
        config,
        dataset=whole(config.dataset),
        features=config.features and whole(config.features),
        labels=config.labels and whole(config.labels),
    )


def compare_environment(folder: Path, now: dict[str, Any]) -> None:
    """Warns where a run goes on under another release or machine than it began with."""
    try:
        then = json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        log.warning("%s cannot be read, so it is not known what made the run", folder / ENVIRONMENT)
        return
    for name in ("torch", "device", "threads", "machine"):
        if then.get(name) != now.get(name):
            log.warning(
                "%s was %s and is now %s: the run continues, but not bit for bit",
                name,
                then.get(name),
                now.get(name),
            )


def make_folder(folder: Path) -> None:
    """Makes a folder and those above it.

    Raises:
        CheckpointError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(cannot_write(folder, error)) from error


def append_text(path: Path, text: str) -> None:
    """Adds to the end of a file.

    Raises:
        CheckpointError: it cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
    except OSError as error:
        raise CheckpointError(cannot_write(path, error)) from error


def write_text(path: Path, text: str) -> None:
    """Writes a file whole, or leaves what was there.

    Raises:
        CheckpointError: it cannot be written.
    """
    # Paths may hold bytes that are no text; they are written as they are.
    write_file(path, text.encode("utf-8", "surrogateescape"))


def write_json(path: Path, value: dict[str, Any]) -> None:
    """The same for a value that JSON can hold."""
    write_text(path, json.dumps(value, indent=2) + "\n")
