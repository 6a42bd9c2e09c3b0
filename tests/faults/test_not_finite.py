"""A run whose numbers stop being finite says when, where and why, and keeps what was good."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from maxk.core.errors import TrainingError
from maxk.data.load import load
from maxk.train import checkpoint
from maxk.train.config import TrainConfig
from maxk.train.loop import Trainer
from maxk.train.run import Watcher, run

CONFIG = TrainConfig(
    dataset="synthetic:nodes=60,degree=4,communities=3,features=6", hidden=8, k=4, layers=2,
    epochs=5, dropout=0.5, device="cpu", norm="batch",
)  # fmt: skip


def spoil_features(trainer: Trainer) -> None:
    trainer.dataset.x[5] = float("nan")


def huge_features(trainer: Trainer) -> None:
    trainer.dataset.x.fill_(3e38)


def spoil_weights(trainer: Trainer) -> None:
    with torch.no_grad():
        trainer.model.layers[1].lin_r.weight[0, 0] = float("inf")  # type: ignore[index,union-attr]


def huge_weights(trainer: Trainer) -> None:
    with torch.no_grad():
        trainer.model.lin_out.weight.fill_(3e38)  # type: ignore[union-attr,operator]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (spoil_features, "the features are not finite"),
        (huge_features, r"reach layer \S+ \(\w+\), so what feeds it overflowed"),
        (spoil_weights, r"the weights layers\.1\.lin_r\.weight are not finite"),
        (huge_weights, r"come out of layer lin_out \(Linear\), whose largest input is "),
    ],
)
def test_the_message_says_when_where_and_why(spoil: Callable[[Trainer], None], why: str) -> None:
    data = load(CONFIG.dataset)
    trainer = Trainer(CONFIG, replace(data, x=data.x.clone()))
    trainer.train_epoch()
    spoil(trainer)
    buffers = [buffer.clone() for buffer in trainer.model.buffers()]
    with pytest.raises(TrainingError, match=rf"in epoch 2, so training stopped: .*{why}.*--lr"):
        trainer.train_epoch()
    # The step that failed counts as one batch of the norms; to look for the fault, as none.
    counts = [int(b) for b in trainer.model.buffers() if not b.is_floating_point()]
    assert counts == [int(b) + 1 for b in buffers if not b.is_floating_point()]


def test_a_step_from_a_loss_that_is_not_finite_is_not_made() -> None:
    trainer = Trainer(CONFIG)
    trainer.train_epoch()
    huge_weights(trainer)
    before = [parameter.clone() for parameter in trainer.model.parameters()]
    with pytest.raises(TrainingError):
        trainer.train_epoch()
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))


def test_the_state_before_is_saved(tmp_path: Path) -> None:
    def on_epoch(trainer: Trainer, record: object) -> None:
        if trainer.epoch == 3:
            huge_weights(trainer)

    with pytest.raises(TrainingError, match="in epoch 4"):
        run(replace(CONFIG, out=str(tmp_path / "run")), Watcher(on_epoch=on_epoch))
    state = checkpoint.load_state(tmp_path / "run")
    assert state is not None
    assert state["epoch"] == 3
    assert len((tmp_path / "run" / "epochs.jsonl").read_text().splitlines()) == 3
    assert checkpoint.load_weights(tmp_path / "run" / "best.safetensors")
