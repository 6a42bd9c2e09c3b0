"""The folder of a run: where its files are; creating, opening and writing it.

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

With several seeds the files from epochs.jsonl on are in seed-0, seed-1, ..., and summary.json
holds the mean and the spread.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maxk.core.errors import CheckpointError, ConfigError, TrainingError
from maxk.data.dataset import Dataset
from maxk.graph.graph import Graph
from maxk.nn.functional import aligned
from maxk.train import checkpoint, metrics
from maxk.train.checkpoint import cannot_write, write_file
from maxk.train.config import TrainConfig, flag
from maxk.train.diagnosis import first_nonfinite
from maxk.train.isolation import Initialising, first_random, numerics
from maxk.train.setup import (
    load_dataset,
    load_inputs,
    model_of_widths,
    resolve_device,
    run_model,
)

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


class SavedRun:
    """The best weights of a saved run: what they predict and how they score.

    The data set is read when it is needed: all of it for scores, graph and features for
    predictions, nothing for the model itself.

    Args:
        folder: Of the run, for messages.
        config: Its settings, with the data set and the device to use.
        weights: Of the model, on the CPU.
        about: What was saved about them; runs of earlier releases lack the widths.

    Attributes:
        config: The settings.
        device: Where predictions are made.
        model: The module with the best weights, in evaluation mode.
        in_channels: Features of a node.
        out_channels: Classes, or labels where a node may have several.

    Raises:
        CheckpointError: the weights belong to another model.
    """

    def __init__(
        self,
        folder: Path,
        config: TrainConfig,
        weights: Mapping[str, Tensor],
        about: Mapping[str, Any],
    ) -> None:
        self.config, self.device = config, resolve_device(config.device)
        self._folder, self._about = folder, about
        try:
            self.in_channels = int(about.get("in_channels") or weights["lin_in.weight"].shape[1])
            self.out_channels = int(about.get("out_channels") or weights["lin_out.weight"].shape[0])
            # The first weights are replaced at once; the process must not miss their numbers.
            random = first_random(config.seed, torch.device("cpu"))
            with numerics(config):
                with Initialising(random):
                    model = model_of_widths(config, self.in_channels, self.out_channels)
                model.load_state_dict(weights)
                self.model = model.to(self.device).eval()
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"the weights of {folder} do not fit the model of its settings: "
                + str(error).partition("\n")[0]
            ) from error

    @functools.cached_property
    def dataset(self) -> Dataset:
        """The data set, on :attr:`device`.

        Raises:
            DataError: it is missing or broken.
            CheckpointError: its features or classes do not fit the model.
        """
        data = load_dataset(self.config)
        self._check_features(data.name, data.x)
        outputs, classes = self.out_channels, data.num_classes
        # Fewer classes than outputs are scored as well as all; a column of labels each is not.
        if classes > outputs or (data.multi_label and classes != outputs):
            raise CheckpointError(
                f"the labels of {data.name} do not fit the model of {self._folder}: they have "
                f"{classes} classes, the model has {outputs} outputs"
            )
        self._compare(data.name, checkpoint.contents(data))
        return data.to(self.device)

    @functools.cached_property
    def inputs(self) -> tuple[Tensor, Graph]:
        """Features and graph, on :attr:`device`; labels and splits need not be there.

        Raises:
            DataError: they are missing or broken.
            CheckpointError: the features do not fit the model.
        """
        if "dataset" in self.__dict__:
            return self.dataset.x, self.dataset.graph
        name, graph, x = load_inputs(self.config)
        self._check_features(name, x)
        self._compare(name, checkpoint.input_contents(graph, x))
        return aligned(x.to(self.device)), graph.to(self.device)

    @property
    def multi_label(self) -> bool:
        """Whether a node may carry several labels."""
        saved = self._about.get("multi_label")
        return self.dataset.multi_label if saved is None else bool(saved)

    def predict(self) -> Tensor:
        """Returns the logits ``[N, C]`` of every node."""
        x, graph = self.inputs
        with numerics(self.config), torch.no_grad():
            return run_model(self.config, self.model, x, graph)

    def evaluate(self) -> dict[str, float]:
        """Returns the train, val and test scores.

        Raises:
            TrainingError: a logit is not finite.
        """
        data = self.dataset
        logits = self.predict()
        if not bool(logits.isfinite().all()):
            raise TrainingError(
                f"the output of {self._folder} on {data.name} is not finite: "
                + first_nonfinite(self.model, data.x, lambda: self.model(data.x, data.graph))
            )
        with numerics(self.config):
            return metrics.Judge(data).scores(logits, final=True)

    def _check_features(self, name: str, x: Tensor) -> None:
        if x.shape[1] != self.in_channels:
            raise CheckpointError(
                f"the features of {name} do not fit the model of {self._folder}: they have "
                f"{x.shape[1]} columns, the model takes {self.in_channels}"
            )

    def _compare(self, name: str, now: dict[str, str]) -> None:
        before = self._about.get("contents")
        if before is not None and (parts := checkpoint.changed_parts(before, now)):
            log.info(
                "%s has other %s than the data that %s was trained on", name, parts, self._folder
            )


def open_run(folder: str | Path, **overrides: object) -> SavedRun:
    """Opens a saved run with its best weights.

    Args:
        folder: A run folder; with several seeds, that of one of them (``RUN/seed-0``).
        **overrides: ``dataset``, ``features``, ``labels`` and ``device``, where they differ from
            those of training.

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
    # The settings of a seed are in the folder above.
    match = re.fullmatch(r"seed-(\d+)", folder.name)
    config = saved_config(folder.parent if match else folder)
    if match:
        config = replace(config, seed=int(match[1]), seeds=1)
    # A run made on a GPU opens on a machine without one.
    config = replace(config, **{"device": "auto", **overrides})  # type: ignore[arg-type]
    if not weights.exists():
        raise CheckpointError(f"{folder} holds no {checkpoint.BEST}; train it first")
    return SavedRun(folder, config, *checkpoint.read_weights(weights))


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
    """Removes a folder whose first epoch failed, so that no incomplete run stays."""
    for path in dict.fromkeys((*seed_folders(folder), folder)):
        for name in (CONFIG, ENVIRONMENT, EPOCHS):
            (path / name).unlink(missing_ok=True)
        path.rmdir()


def portable(config: TrainConfig) -> TrainConfig:
    """Makes paths absolute, so that the run opens from every working directory."""

    def absolute(path: str) -> str:
        return str(Path(path).resolve()) if Path(path).is_file() else path

    return replace(
        config,
        dataset=absolute(config.dataset),
        features=config.features and absolute(config.features),
        labels=config.labels and absolute(config.labels),
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
    """Writes a complete file, or leaves what was there.

    Raises:
        CheckpointError: it cannot be written.
    """
    # Paths may hold bytes that are no text; they are written as they are.
    write_file(path, text.encode("utf-8", "surrogateescape"))


def write_json(path: Path, value: dict[str, Any]) -> None:
    """The same for a value that JSON can hold."""
    write_text(path, json.dumps(value, indent=2) + "\n")
