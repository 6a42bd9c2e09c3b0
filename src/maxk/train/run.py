"""A whole run: data, device, one or several seeds, and the folder that remembers all of it."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from maxk.core.errors import MaxKError, TrainingError
from maxk.data.dataset import Dataset
from maxk.measure.environment import environment
from maxk.train import advice, checkpoint, loggers
from maxk.train.config import TrainConfig
from maxk.train.folder import (
    CONFIG,
    ENVIRONMENT,
    EPOCHS,
    SUMMARY,
    append_text,
    compare_environment,
    make_folder,
    new_folder,
    portable,
    remove_failed,
    saved_config,
    write_json,
    write_text,
)
from maxk.train.loop import Epoch, Trainer
from maxk.train.setup import load_dataset, resolve_device, uncapturable

log = logging.getLogger(__name__)

#: A kill costs at most this much work; saving after every epoch would cost more than small epochs.
SAVE_SECONDS = 10.0

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
        config: The settings. With ``resume``, those of :func:`maxk.train.folder.resumed_config`.
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
        folder = new_folder(config, dataset)
        write_text(folder / CONFIG, portable(config).to_toml())
        write_json(folder / ENVIRONMENT, environment(first.device))
    else:
        folder = Path(config.resume)
        saved = saved_config(folder)
        longer = replace(saved, epochs=config.epochs, patience=config.patience, log=config.log)
        write_text(folder / CONFIG, longer.to_toml())
        compare_environment(folder, environment(first.device))
    with signals() as caught:
        try:
            if config.seeds == 1:
                summary = _run_seed(first, folder, watcher, caught)
            else:
                summary = _run_seeds(first, dataset, folder, watcher, caught)
        except MaxKError:
            if config.resume is None and not first.epoch:
                remove_failed(folder)
            raise
    return folder, summary


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
        make_folder(inner)
        trainer = trainer or _seed_trainer(config, dataset, seed)
        try:
            summaries.append(_run_seed(trainer, inner, watcher, caught))
        except Interrupted as stop:
            raise Interrupted(stop.signal, folder, stop.epoch) from stop
        trainer = None
    summary = summarise(summaries)
    write_json(folder / SUMMARY, summary)
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
    write_text(epochs, "".join(_line(e) for e in trainer.history))
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
        append_text(epochs, _line(record))
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
    write_json(folder / SUMMARY, summary)
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
        "contents": trainer.contents,
    }


def _seed_trainer(config: TrainConfig, dataset: Dataset, seed: int) -> Trainer:
    config = replace(config, seed=seed)
    # Unless a split is named, it may be made from the seed, and a seed gives the same result alone
    # and among others.
    return Trainer(config, dataset if isinstance(config.split, int) else load_dataset(config))


def _line(record: Epoch) -> str:
    return json.dumps(asdict(record)) + "\n"


@contextlib.contextmanager
def signals() -> Iterator[list[int]]:
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
