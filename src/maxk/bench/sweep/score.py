"""What one finished run is: a score, one JSON object per line, and the file it is kept in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from maxk.measure import rows

#: Names of the files of a sweep in its folder.
SCORES, TABLE, SPEEDS = "sweep.jsonl", "sweep.csv", "speed.jsonl"


@dataclass(frozen=True)
class Setting:
    """What is compared: a nonlinearity in one model on one data set under one recipe.

    Attributes:
        dataset: Name of the data set.
        model: ``sage``, ``gcn`` or ``gin``.
        nonlinearity: Its name.
        k: Kept entries per row, or as many on average; None for ``relu``.
        groups: Blocks of columns that share k; None where nothing is stored as CBSR.
        recipe: File of the settings, and what was set in addition, as ``cora-gcn.toml layers=3``;
            empty for the defaults.
        settings: Digest of what the recipe says, so that another recipe is another setting.
    """

    dataset: str
    model: str
    nonlinearity: str
    k: int | None
    groups: int | None
    recipe: str
    settings: str

    @property
    def field(self) -> tuple[str, str, str, str]:
        """What it shares with those it is compared with."""
        return self.dataset, self.model, self.recipe, self.settings

    @property
    def place(self) -> str:
        """The data set, with what was set in addition to the recipe."""
        changed = " ".join(word for word in self.recipe.split() if not word.endswith(".toml"))
        return f"{self.dataset} ({changed})" if changed else self.dataset


@dataclass(frozen=True)
class Score(Setting):
    """One finished run.

    Attributes:
        seed: Of initialisation and dropout.
        split: Number of the split, or the seed it was made from where the source has none.
        metric: ``accuracy``, ``micro_f1`` or ``roc_auc``.
        val: Best validation score; None where the run diverged.
        test: Test score of that epoch.
        test_last: Test score of the last epoch.
        best_epoch: Counted from 1.
        epochs: Trained.
        diverged: Epoch in which a number was not finite any more, or None.
        kept: Mean share of hidden entries that pass the nonlinearity in training.
        hidden: D.
        layers: Graph layers.
        seconds_per_epoch: Step, prediction and scores; with several ``workers`` on one device it
            holds their waiting for each other.
        workers: Processes that trained at a time.
        device: ``cpu``, or the GPU's name.
        torch: Version.
        commit: Of this package.
        date: Day, ISO 8601.
    """

    seed: int = 0
    split: int | None = None
    metric: str = "accuracy"
    val: float | None = None
    test: float | None = None
    test_last: float | None = None
    best_epoch: int | None = None
    epochs: int | None = None
    diverged: int | None = None
    kept: float | None = None
    hidden: int | None = None
    layers: int | None = None
    seconds_per_epoch: float | None = None
    workers: int = 1
    device: str = "cpu"
    torch: str = ""
    commit: str = "unknown"
    date: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        """What makes two runs the same."""
        return (*(getattr(self, f.name) for f in fields(Setting)), self.seed)


@dataclass(frozen=True)
class Speed(Setting):
    """An epoch of one setting, timed alone on the device, compared with ReLU's.

    Attributes:
        ms: Median of a training step in milliseconds.
        ms_low: 20th percentile.
        ms_high: 80th percentile.
        ratio: ReLU's median over this one.
        ratio_low: 20th percentile of the ratios of single rounds.
        ratio_high: 80th percentile of the same.
        ceiling: ReLU's step over the same step without the time of its aggregations.
        rounds: Rounds that the medians are taken over.
        device: ``cpu``, or the GPU's name.
        machine: Processor.
        threads: CPU threads.
        torch: Version.
        commit: Of this package.
        date: Day, ISO 8601.
    """

    ms: float = 0.0
    ms_low: float = 0.0
    ms_high: float = 0.0
    ratio: float = 1.0
    ratio_low: float = 1.0
    ratio_high: float = 1.0
    ceiling: float = 1.0
    rounds: int = 0
    device: str = "cpu"
    machine: str = ""
    threads: int = 1
    torch: str = ""
    commit: str = "unknown"
    date: str = ""


def read_scores(path: Path) -> list[Score]:
    """Returns the runs of a file, the last of each key; none where there is no file.

    Raises:
        DataError: a line but an unfinished last one is no run.
    """
    return rows.latest(rows.read(path, Score, missing_ok=True), lambda score: score.key)


def read_speeds(path: Path) -> list[Speed]:
    """Returns the speeds of a file, the last of each setting and device; none without a file.

    Raises:
        DataError: a line but an unfinished last one is no speed.
    """
    found = rows.read(path, Speed, missing_ok=True)
    return rows.latest(found, lambda speed: (bare(speed), speed.device))


def on_one_device(speeds: Iterable[Speed]) -> list[Speed]:
    """Returns the speeds of the device that timed most settings; of a GPU rather than a CPU."""
    groups: dict[str, list[Speed]] = {}
    for speed in speeds:
        groups.setdefault(speed.device, []).append(speed)
    return max(groups.values(), key=lambda g: (len(g), g[0].device != "cpu"), default=[])


def devices(measured: Iterable[Score | Speed]) -> str:
    """Returns where rows were made, in words."""
    names = dict.fromkeys(row.device for row in measured)
    return ", ".join("CPU" if name == "cpu" else name for name in names)


def bare(row: Setting) -> Setting:
    """The setting of a row without what was found out about it."""
    return Setting(**{f.name: getattr(row, f.name) for f in fields(Setting)})
