"""What was asked for -> the runs there are to train."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from maxk.bench.models import MODELS
from maxk.bench.sweep.score import Setting
from maxk.core.errors import ConfigError
from maxk.nn.nonlinearities import NONLINEARITIES as ALL_NONLINEARITIES
from maxk.train.config import TrainConfig, field_types, from_keys, parse_flag, read_toml

KS = (2, 4, 8, 16, 32, 64, 96, 128, 192)
#: What is compared with ReLU.
NONLINEARITIES = tuple(name for name in ALL_NONLINEARITIES if name != "relu")

#: Settings that a sweep varies or that say where it runs: another value is no other recipe.
_VARIED = ("dataset", "model", "nonlinearity", "k", "groups", "seed", "seeds")
_PLACE = ("device", "cuda_graph")


@dataclass(frozen=True)
class Request:
    """What a sweep is asked to train.

    Attributes:
        datasets: Names or paths.
        ks: Kept entries; those above a recipe's hidden width are left out.
        models: Of :data:`maxk.bench.models.MODELS`.
        nonlinearities: Of :data:`NONLINEARITIES`; ReLU is always included.
        seeds: Runs of each setting, with seeds from 0.
        groups: Most blocks of columns of ``maxk-grouped``; at each k the largest number up to it
            that divides k and the width.
        recipes: Folder of ``<dataset>-<model>.toml``; a data set without one runs with the
            defaults of ``maxk train``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        overrides: Settings that win over every recipe; rows carry them after the recipe's name.
    """

    datasets: tuple[str, ...]
    ks: tuple[int, ...] = KS
    models: tuple[str, ...] = tuple(MODELS)
    nonlinearities: tuple[str, ...] = ("maxk",)
    seeds: int = 10
    groups: int = 32
    recipes: Path = Path("recipes")
    device: str = "auto"
    overrides: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """One run: its settings, and how its row calls them."""

    config: TrainConfig
    setting: Setting

    @property
    def key(self) -> tuple[object, ...]:
        """As :attr:`maxk.bench.sweep.score.Score.key`."""
        s = self.setting
        names = (s.dataset, s.model, s.nonlinearity, s.k, s.groups, s.recipe, s.settings)
        return (*names, self.config.seed)


def jobs(request: Request) -> list[Job]:
    """Returns every run, data set by data set, so that a worker loads each graph once.

    Raises:
        ConfigError: a recipe is wrong, or no k fits it.
    """
    found = []
    for dataset in request.datasets:
        for model in request.models:
            for job in settings(request, dataset, model):
                for seed in range(request.seeds):
                    found.append(Job(replace(job.config, seed=seed), job.setting))
    return found


def settings(request: Request, dataset: str, model: str) -> list[Job]:
    """Returns the settings of one model on one data set, ReLU first, each as its run of seed 0."""
    recipe, table, digest = _recipe(request, dataset, model)
    name = _name(dataset)
    found = []
    for nonlinearity, k, groups in _choices(request, TrainConfig(**{**table, "k": 1}).hidden):
        regular = nonlinearity in ("maxk", "maxk-grouped")
        setting = Setting(
            dataset=name,
            model=model,
            nonlinearity=nonlinearity,
            k=None if nonlinearity == "relu" else k,
            groups=groups if regular else None,
            recipe=recipe,
            settings=digest,
        )
        varied = {"nonlinearity": nonlinearity, "k": k, "groups": groups}
        config = TrainConfig(**{**table, **varied, "dataset": dataset, "model": model})
        found.append(Job(config, setting))
    return found


def _choices(request: Request, hidden: int) -> Iterator[tuple[str, int, int]]:
    yield "relu", 1, 1
    ks = [k for k in request.ks if k <= hidden]
    if not ks:
        raise ConfigError(f"--k must hold a number up to the hidden width {hidden}, "
                          f"got {', '.join(map(str, request.ks))}")  # fmt: skip
    for nonlinearity in request.nonlinearities:
        for k in ks:
            groups = 1
            if nonlinearity == "maxk-grouped":
                common = math.gcd(k, hidden)
                groups = max(g for g in range(1, request.groups + 1) if common % g == 0)
            yield nonlinearity, k, groups


def _recipe(request: Request, dataset: str, model: str) -> tuple[str, dict[str, Any], str]:
    """The name of a recipe, its settings as fields, and their digest."""
    path = request.recipes / f"{_name(dataset)}-{model}.toml"
    table: dict[str, Any] = {}
    if path.exists():
        table = _without_varied(read_toml(path))
        try:
            TrainConfig(**{**table, "k": 1})
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    table.update(_without_varied(request.overrides))
    fixed = {name: value for name, value in sorted(table.items()) if name not in _PLACE}
    table["device"] = request.device
    digest = hashlib.sha256(json.dumps(fixed).encode()).hexdigest()[:8]
    words = [path.name] if path.exists() else []
    words += [
        f"{name.replace('_', '-')}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in request.overrides.items()
        if name not in _PLACE
    ]
    return " ".join(words), table, digest


def _without_varied(table: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name not in _VARIED}


def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Reads ``layers=4`` as a setting of ``maxk train``.

    Raises:
        ConfigError: it has no ``=``, or names no setting, or one that a sweep varies itself.

    Example:
        >>> parse_overrides(["layers=4", "weight-decay=0.1", "self-loops=true"])
        {'layers': 4, 'weight_decay': 0.1, 'self_loops': True}
    """
    found: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"--set must be a setting and its value, as layers=4, got {word!r}")
        (name,) = from_keys({key: text}, "--set")
        if name in _VARIED or name in _PLACE:
            raise ConfigError(f"--set {key} cannot be: the sweep varies it, or has a flag for it")
        value = {"true": True, "false": False}.get(text) if field_types()[name] is bool else None
        found[name] = parse_flag(name, text) if value is None else value
    return found


def _name(dataset: str) -> str:
    return Path(dataset).stem if "/" in dataset or Path(dataset).suffix else dataset
