from __future__ import annotations

import csv
import importlib.util
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch

from maxk.cli.main import main
from maxk.core.errors import CheckpointError, ConfigError, TrainingError
from maxk.data.load import load
from maxk.train.config import TrainConfig
from maxk.train.loggers import CSVLogger, TensorBoardLogger, open_loggers
from maxk.train.loop import Trainer
from maxk.train.run import run

DATA = "synthetic:nodes=80,degree=4,communities=3,features=6"
CONFIG = TrainConfig(dataset=DATA, hidden=8, k=4, layers=2, epochs=3, device="cpu")


class Listener:
    """A logger that remembers what it is told."""

    def __init__(self) -> None:
        self.params: list[dict[str, Any]] = []
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.ends: list[str] = []

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        self.params.append(params)

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.rows.append((step, metrics))

    def finalize(self, status: str) -> None:
        self.ends.append(status)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def curves(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder)).Reload()


def test_a_trainer_tells_its_loggers() -> None:
    one, other = Listener(), Listener()
    trainer = Trainer(CONFIG, load(DATA), loggers=[one])
    trainer.train_epoch()
    trainer.loggers.append(other)
    trainer.fit()
    assert [step for step, _ in one.rows] == [1, 2, 3]
    assert [step for step, _ in other.rows] == [2, 3]
    (params,) = one.params
    assert (params["dataset"], params["hidden"], params["lr"]) == (DATA, 8, CONFIG.lr)
    last = trainer.history[-1]
    told = one.rows[-1][1]
    assert told["loss"] == last.loss
    assert told["val_accuracy"] == last.val
    assert told["seconds_select"] == last.seconds_select
    assert "epoch" not in told
    assert one.ends == other.ends == ["success"]


def test_a_logger_of_lightning_is_told_too(tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger as Theirs

    theirs = Theirs(tmp_path, name="", version="")
    trainer = Trainer(CONFIG, load(DATA), loggers=[theirs, CSVLogger(tmp_path / "ours.csv")])
    trainer.fit()
    rows, ours = table(tmp_path / "metrics.csv"), table(tmp_path / "ours.csv")
    assert [row["step"] for row in rows] == [row["epoch"] for row in ours] == ["1", "2", "3"]
    assert [row["val_accuracy"] for row in rows] == [row["val_accuracy"] for row in ours]
    assert "hidden: 8" in (tmp_path / "hparams.yaml").read_text()


def test_training_that_breaks_off_ends_the_loggers() -> None:
    listener = Listener()
    trainer = Trainer(CONFIG, load(DATA), loggers=[listener])
    with torch.no_grad():
        next(trainer.model.parameters()).fill_(math.nan)
    with pytest.raises(TrainingError):
        trainer.fit()
    assert listener.ends == ["failed"]


def test_csv_of_a_run_and_of_its_continuation(tmp_path: Path) -> None:
    folder, _ = run(replace(CONFIG, log=("csv",), out=str(tmp_path / "run")))
    rows = table(folder / "metrics.csv")
    lines = [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3]
    for row, line in zip(rows, lines, strict=True):
        assert float(row["loss"]) == line["loss"]
        assert float(row["test_accuracy"]) == line["test"]
    # An epoch behind the checkpoint, as a kill leaves it.
    with (folder / "metrics.csv").open("a") as file:
        file.write("4,9,9,9,9,9,9,9,9\n5,9,9,9,9,9,9,9,9\n")
    assert main(["train", "--resume", str(folder), "--epochs", "4", "--quiet"]) == 0
    rows = table(folder / "metrics.csv")
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3, 4]
    assert float(rows[3]["loss"]) < 9


def test_a_column_that_comes_late_and_goes(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path / "metrics.csv")
    logger.log_metrics({"loss": 1.0}, 1)
    logger.log_metrics({"loss": 0.5, "seconds_select": 0.1}, 2)
    logger.log_metrics({"loss": 0.25}, 3)
    assert logger.path.read_text() == "epoch,loss,seconds_select\n1,1.0,\n2,0.5,0.1\n3,0.25,\n"
    frame = pandas.read_csv(logger.path)
    assert frame["seconds_select"].isna().tolist() == [True, False, True]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path / "absent" / "metrics.csv")
    with pytest.raises(CheckpointError, match=r"cannot write .*metrics.csv"):
        logger.log_metrics({"loss": 1.0}, 1)
    logger.path.parent.mkdir()
    logger.log_metrics({"loss": 1.0}, 1)
    logger.path.unlink()
    logger.path.mkdir()
    with pytest.raises(CheckpointError, match=r"cannot write .*metrics.csv"):
        logger.log_metrics({"loss": 1.0}, 2)


def test_tensorboard_curves(tmp_path: Path) -> None:
    out = tmp_path / "run"
    flags = [word for kind in ("tensorboard", "csv") for word in ("--log", kind)]
    words = ["--dataset", DATA, "--hidden", "8", "--k", "4", "--device", "cpu", "--quiet"]
    assert main(["train", *words, "--epochs", "3", *flags, "--out", str(out)]) == 0
    written = curves(out / "tensorboard")
    rows = table(out / "metrics.csv")
    names = set(rows[0]) - {"epoch"}
    assert set(written.Tags()["scalars"]) == names
    for name in ("loss", "val_accuracy"):
        points = written.Scalars(name)
        assert [point.step for point in points] == [1, 2, 3]
        assert [point.value for point in points] == pytest.approx([float(r[name]) for r in rows])
    (settings,) = written.Tensors("settings/text_summary")
    assert b"| hidden | 8 |" in settings.tensor_proto.string_val[0]


def test_tensorboard_takes_back_what_is_trained_again(tmp_path: Path) -> None:
    for start in (1, 3):
        logger = TensorBoardLogger(tmp_path)
        for step in range(start, start + 4):
            logger.log_metrics({"loss": start + step / 100}, step)
        logger.finalize("success")
    points = curves(tmp_path).Scalars("loss")
    assert [point.step for point in points] == [1, 2, 3, 4, 5, 6]
    assert [round(point.value) for point in points] == [1, 1, 3, 3, 3, 3]


def test_tensorboard_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find(name)
    )
    with pytest.raises(ConfigError, match=r'type: pip install "maxk\[track\]"'):
        run(replace(CONFIG, log=("tensorboard",), out=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()
    assert [type(logger) for logger in open_loggers(["csv", "csv"], tmp_path)] == [CSVLogger]


def test_the_setting_is_checked_and_kept() -> None:
    assert TrainConfig(log=["csv"]).log == ("csv",)  # type: ignore[arg-type]
    for wrong in ("csv", ["wandb"], [1], 3):
        with pytest.raises(ConfigError, match="--log must be a list of csv or tensorboard, got"):
            TrainConfig(log=wrong)  # type: ignore[arg-type]


def test_the_trainer_reads_well_in_a_notebook() -> None:
    trainer = Trainer(replace(CONFIG, lr=0.05), load(DATA))
    assert repr(trainer) == (
        "Trainer(sage maxk k=4, hidden 8, layers 2, on synthetic, cpu: epoch 0 of 3)"
    )
    with pytest.raises(TrainingError, match="no best weights yet"):
        trainer.restore_best()
    trainer.fit()
    best = trainer.best
    assert best is not None
    assert repr(trainer).endswith(
        f"epoch 3 of 3, best accuracy {best.val:.2%} val, {best.test:.2%} test in epoch "
        f"{best.epoch})"
    )
    frame = pandas.DataFrame(trainer.history)
    assert frame["val"].max() == best.val
    assert frame.columns[:3].tolist() == ["epoch", "loss", "train"]
    with torch.no_grad():
        next(trainer.model.parameters()).zero_()
    assert trainer.restore_best().evaluate()["val"] == best.val
