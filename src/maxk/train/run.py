"""A whole run: data, device, one or several seeds, and the folder that remembers all of it.

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

import contextlib
import json
import logging
import re
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from maxk.core.errors import CheckpointError, ConfigError, MaxKError, TrainingError
from maxk.data.dataset import Dataset
from maxk.measure.environment import environment
from maxk.train import advice, checkpoint, loggers
from maxk.train.checkpoint import cannot_write, write_file
from maxk.train.config import TrainConfig, flag
from maxk.train.history import Epoch
from maxk.train.loop import Trainer
from maxk.train.setup import load_dataset, resolve_device, uncapturable

log = logging.getLogger(__name__)

CONFIG = "config.toml"
ENVIRONMENT = "environment.json"
EPOCHS = "epochs.jsonl"
SUMMARY = "summary.json"

#: A kill costs at most this much work; saving after every epoch would cost more than small epochs.
SAVE_SECONDS = 10.0

#: Settings that may differ when a run is continued.
RESUMABLE = frozenset(
    {"dataset", "features", "labels", "device", "cuda_graph", "epochs", "patience", "log", "quiet"}
)

_AVERAGED = ("val", "test", "test_last")
_WORST = ("peak_memory",)
_SECONDS = (
    "seconds_per_epoch",
    "seconds_select",
    "seconds_aggregate",
    "seconds_rest",
    "seconds_evaluate",
)


class Interrupted(Exception):
    """SIGINT or SIGTERM came; the state was saved first.

    Attributes:
        signal: Number of the signal; the process should exit with 128 + this number.
        folder: The run folder, to continue with ``--resume``.
        epoch: The last epoch that is saved.
    """

    def __init__(self, number: int, folder: Path, epoch: int) -> None:
        super().__init__(number, folder, epoch)
        self.signal = number
        self.folder = folder
        self.epoch = epoch


@dataclass(frozen=True)
class Watcher:
    """What to call while a run goes on; each may be left out.

    Attributes:
        on_start: Called with the trainer of a seed before its first epoch.
        on_epoch: Called with the trainer and what the epoch gave.
    """

    on_start: Callable[[Trainer], object] = lambda trainer: None
    on_epoch: Callable[[Trainer, Epoch], object] = lambda trainer, epoch: None


def run(config: TrainConfig, watcher: Watcher | None = None) -> tuple[Path, dict[str, Any]]:
    """Trains as the settings say and returns the run folder and its summary.

    SIGINT and SIGTERM end it at the next epoch's end, with the state saved.

    Args:
        config: The settings. With ``resume``, those of :func:`resumed_config`.
        watcher: Told of every epoch.

    Raises:
        Interrupted: a signal came.
        MaxKError: settings, data, device, folder or loss are wrong; the message says how.
    """
    watcher = watcher or Watcher()
    loggers.check(config.log)
    device = resolve_device(config.device)
    dataset = load_dataset(config)
    for note in dataset.notes:
        word, _, text = note.partition("warning: ")
        level = logging.INFO if word else logging.WARNING
        log.log(level, "%s: %s", dataset.name, text or note)
    log.info("%s", advice.forecast(config, dataset, device))
    if config.cuda_graph and device.type == "cuda" and (why := uncapturable(dataset, device)):
        log.info("no CUDA graph: %s", why)
    first = Trainer(config, dataset)
    if config.resume is None:
        folder = _new_folder(config, dataset)
        _write(folder / CONFIG, _portable(config).to_toml())
        _write_json(folder / ENVIRONMENT, environment(first.device))
    else:
        folder = Path(config.resume)
        saved = saved_config(folder)
        longer = replace(saved, epochs=config.epochs, patience=config.patience, log=config.log)
        _write(folder / CONFIG, longer.to_toml())
        _compare_environment(folder, environment(first.device))
    with _signals() as caught:
        try:
            if config.seeds == 1:
                summary = _run_seed(first, folder, watcher, caught)
            else:
                summary = _run_seeds(first, dataset, folder, watcher, caught)
        except MaxKError:
            if config.resume is None and not first.epoch:
                _forget(folder)
            raise
    return folder, summary


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
            f"{folder} holds {len(seeds)} seeds; name one of them, for example {seeds[0]}"
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
    tensors = checkpoint.load_weights(weights)
    trainer = Trainer(config)
    trainer.load_weights(tensors)
    return trainer


def summarise(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns one summary of several seeds: means, and sample standard deviations as ``*_sd``."""
    first = summaries[0]
    result = {n: v for n, v in first.items() if n not in ("seed", "epochs", "best_epoch")}
    for name in _AVERAGED:
        values = [s[name] for s in summaries]
        result[name] = statistics.fmean(values)
        result[f"{name}_sd"] = statistics.stdev(values) if len(values) > 1 else 0.0
    for name in _WORST:
        result[name] = max(s[name] for s in summaries)
    for name in _SECONDS:
        known = [s[name] for s in summaries if s[name] is not None]
        result[name] = statistics.median(known) if known else None
    for name in ("epochs", "best_epoch"):
        result[name] = [s[name] for s in summaries]
    if result["seconds_rest"] is not None:
        # The parts of medians need not add up to the median of the whole.
        parts = result["seconds_select"] + result["seconds_aggregate"]
        result["seconds_rest"] = max(result["seconds_per_epoch"] - parts, 0.0)
    result["seeds"] = [s["seed"] for s in summaries]
    result["runs"] = summaries
    return result


def _run_seeds(
    first: Trainer, dataset: Dataset, folder: Path, watcher: Watcher, caught: list[int]
) -> dict[str, Any]:
    config, summaries = first.config, []
    trainer: Trainer | None = first
    del first  # so that one seed's memory is free before the next one's is taken
    for seed in range(config.seed, config.seed + config.seeds):
        inner = folder / f"seed-{seed}"
        _make(inner)
        trainer = trainer or _seed_trainer(config, dataset, seed)
        try:
            summaries.append(_run_seed(trainer, inner, watcher, caught))
        except Interrupted as stop:
            raise Interrupted(stop.signal, folder, stop.epoch) from stop
        trainer = None
    summary = summarise(summaries)
    _write_json(folder / SUMMARY, summary)
    return summary


def _run_seed(
    trainer: Trainer, folder: Path, watcher: Watcher, caught: list[int]
) -> dict[str, Any]:
    """Trains one seed to its end in its folder, from where its state says."""
    state = checkpoint.load_state(folder)
    if state is not None:
        trainer.load_state(state)
        if trainer.finished:
            log.info("%s is finished after %d epochs", folder, trainer.epoch)
    elif trainer.config.resume is not None:
        log.info("%s holds no checkpoint yet; training starts at the first epoch", folder)
    epochs = folder / EPOCHS
    # Lines behind the checkpoint belong to epochs that are trained again.
    _write(epochs, "".join(_line(e) for e in trainer.history))
    if not trainer.finished:
        watcher.on_start(trainer)
    trainer.loggers = loggers.open_loggers(trainer.config.log, folder)
    saved = time.monotonic()
    while not (trainer.finished or caught):
        try:
            record = trainer.train_epoch()
        except TrainingError:
            if trainer.epoch and trainer.sound:
                _save(trainer, folder)
            else:
                # The best weights are not spoilt, and may be newer than those on disk.
                _save_best(trainer, folder)
            trainer.close_loggers("failed")
            raise
        _append(epochs, _line(record))
        watcher.on_epoch(trainer, record)
        if not trainer.finished and time.monotonic() - saved >= SAVE_SECONDS:
            _save(trainer, folder)
            saved = time.monotonic()
    trainer.close_loggers("success" if trainer.finished else "failed")
    if trainer.epoch:
        _save(trainer, folder)
    if caught and not trainer.finished:
        raise Interrupted(caught[0], folder, trainer.epoch)
    summary = trainer.summary()
    _write_json(folder / SUMMARY, summary)
    return summary


def _save(trainer: Trainer, folder: Path) -> None:
    state = trainer.state()
    checkpoint.save_state(folder, state)
    about = _about(trainer, trainer.epoch)
    checkpoint.save_weights(folder / checkpoint.LAST, state["model"], about)
    _save_best(trainer, folder)


def _save_best(trainer: Trainer, folder: Path) -> None:
    if trainer.best is not None:
        about = _about(trainer, trainer.best.epoch)
        checkpoint.save_weights(folder / checkpoint.BEST, trainer.best.weights, about)


def _about(trainer: Trainer, epoch: int) -> dict[str, Any]:
    config = trainer.config
    return {
        "model": config.model,
        "nonlinearity": config.nonlinearity,
        "k": config.k,
        "epoch": epoch,
    }


def _seed_trainer(config: TrainConfig, dataset: Dataset, seed: int) -> Trainer:
    config = replace(config, seed=seed)
    # Unless a split is named, it may be made from the seed, and a seed gives the same result alone
    # and among others.
    return Trainer(config, dataset if isinstance(config.split, int) else load_dataset(config))


def _new_folder(config: TrainConfig, dataset: Dataset) -> Path:
    if config.out is not None:
        folder = Path(config.out)
        if (folder / CONFIG).exists():
            raise ConfigError(
                f"--out {folder} already holds a run; continue it with --resume {folder} "
                "or choose another folder"
            )
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"--out {folder} must be a new or empty folder; it holds other files")
        _make(folder)
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


def _forget(folder: Path) -> None:
    """Takes back a folder whose first epoch failed, so that nothing half-made stays."""
    for path in dict.fromkeys((*seed_folders(folder), folder)):
        for name in (CONFIG, ENVIRONMENT, EPOCHS):
            (path / name).unlink(missing_ok=True)
        path.rmdir()


def _portable(config: TrainConfig) -> TrainConfig:
    """Makes paths whole, so that the run opens from every working directory."""

    def whole(path: str) -> str:
        return str(Path(path).resolve()) if Path(path).is_file() else path

    return replace(
        config,
        dataset=whole(config.dataset),
        features=config.features and whole(config.features),
        labels=config.labels and whole(config.labels),
    )


def _compare_environment(folder: Path, now: dict[str, Any]) -> None:
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


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM in a list; a second one acts as if nothing watched."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        # Python hands signals to the main thread only.
        yield caught
        return
    watched = (signal.SIGINT, signal.SIGTERM)
    before = {int(number): signal.getsignal(number) for number in watched}

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        log.info("stopping after this epoch; a second signal stops at once, without saving")
        signal.signal(number, before[number])

    for watch in watched:
        signal.signal(watch, note)
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _line(record: Epoch) -> str:
    return json.dumps(asdict(record)) + "\n"


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CheckpointError(cannot_write(path, error)) from error


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(cannot_write(folder, error)) from error


def _write(path: Path, text: str) -> None:
    write_file(path, text.encode("utf-8"))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    _write(path, json.dumps(value, indent=2) + "\n")
