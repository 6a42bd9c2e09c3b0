"""A copied, pickled or sent trainer trains itself, not the one it came from."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from maxk.data.load import load
from maxk.train.config import TrainConfig
from maxk.train.deferred import DeferredTrainer
from maxk.train.loggers import CSVLogger, TensorBoardLogger
from maxk.train.loop import Trainer

CONFIG = TrainConfig(hidden=8, k=4, layers=1, epochs=4, device="cpu")
DATA = "synthetic:nodes=60,degree=4,communities=3,features=6"
WAYS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda trainer: pickle.loads(pickle.dumps(trainer)),
}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture
def eager_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_model = torch.compile
    monkeypatch.setattr(torch, "compile", lambda m: compile_model(m, backend="eager"))


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [t.detach().clone() for t in trainer.model.state_dict().values()]


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("epochs", [0, 2])
def test_a_copy_trains_itself(eager_compiler, device, compiled, way, epochs) -> None:
    config = replace(CONFIG, device=device, compile=compiled, deterministic=device == "cuda")
    original = Trainer(config, load(DATA))
    for _ in range(epochs):
        original.train_epoch()
    other = WAYS[way](original)
    before = weights(original)
    assert equal(weights(other), before)
    first = other.train_epoch()
    assert equal(weights(original), before)
    assert not equal(weights(other), before)
    assert (original.epoch, other.epoch) == (epochs, epochs + 1)
    # Both go on from the same weights, moments and random state.
    assert original.train_epoch().loss == first.loss
    assert equal(weights(original), weights(other))
    other.fit()
    assert original.epoch == epochs + 1


@pytest.mark.gpu
def test_a_copy_of_a_captured_trainer_records_its_own_step() -> None:
    config = replace(CONFIG, device="cuda", epochs=12, deterministic=True)
    original = Trainer(config, load(DATA))
    for _ in range(8):
        original.train_epoch()
    other = copy.deepcopy(original)
    before = weights(original)
    other.fit()
    assert equal(weights(original), before)


def test_a_copy_keeps_its_loggers_and_its_best_epoch(tmp_path: Path) -> None:
    trainer = Trainer(CONFIG, load(DATA), loggers=[CSVLogger(tmp_path / "metrics.csv")])
    trainer.train_epoch()
    other = pickle.loads(pickle.dumps(trainer))
    assert other.best.epoch == trainer.best.epoch == 1
    other.train_epoch()
    assert (tmp_path / "metrics.csv").read_text().count("\n") == 3


def test_a_deferred_trainer_is_copied_too() -> None:
    trainer = DeferredTrainer(CONFIG, load(DATA))
    expected = copy.deepcopy(trainer).run()
    found = trainer.run()
    assert (found.test, found.best_epoch) == (expected.test, expected.best_epoch)


def test_a_logger_that_cannot_be_pickled_is_named() -> None:
    class Local:
        def log_hyperparams(self, params: object) -> None: ...
        def log_metrics(self, metrics: object, step: int) -> None: ...
        def finalize(self, status: str) -> None: ...

    trainer = Trainer(CONFIG, load(DATA), loggers=[Local()])
    with pytest.raises(TypeError, match=r"a logger of this trainer, a Local, cannot be pickled"):
        pickle.dumps(trainer)
    trainer.loggers.clear()
    evaluator = lambda logits, y: 0.5  # noqa: E731
    trainer = Trainer(CONFIG, replace(load(DATA), evaluator=evaluator))
    with pytest.raises(TypeError, match=r"the evaluator .*cannot be pickled"):
        pickle.dumps(trainer)


def test_curves_for_tensorboard_survive_a_copy(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    trainer = Trainer(CONFIG, load(DATA), loggers=[TensorBoardLogger(tmp_path)])
    trainer.train_epoch()
    other = copy.deepcopy(trainer)
    other.fit()
    trainer.close_loggers()
    assert len(list(tmp_path.glob("events*"))) == 2
