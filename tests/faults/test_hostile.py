"""Files that mean harm or are not what they say: a typed error, and nothing runs or is left."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from maxk.core.errors import CheckpointError, ConfigError, DataError
from maxk.data.load import load
from maxk.measure.record import Row
from maxk.measure.rows import from_json
from maxk.train import checkpoint
from maxk.train.config import TrainConfig
from maxk.train.loop import Trainer

CONFIG = TrainConfig(
    dataset="synthetic:nodes=40,degree=3,communities=3,features=6", hidden=8, k=2, layers=1,
    epochs=2, device="cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained() -> Trainer:
    trainer = Trainer(CONFIG)
    trainer.fit()
    return trainer


PARTS = ["shape", "model", "optimizer", "random", "best", "history", "peak_memory"]


@pytest.mark.parametrize("part", PARTS)
def test_a_state_that_lacks_a_part_is_refused(trained: Trainer, part: str) -> None:
    state = trained.state()
    del state[part]
    with pytest.raises(CheckpointError, match=f"not what this version of maxk saves .*'{part}'"):
        Trainer(CONFIG).load_state(state)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("shape", 3), ("model", None), ("model", {}), ("optimizer", {}), ("optimizer", []),
        ("random", {"cpu": torch.zeros(3)}), ("random", {"cpu": "text"}), ("best", "text"),
        ("best", {"epoch": 1}), ("history", 5), ("history", [{"colour": 1}]),
    ],
)  # fmt: skip
def test_a_state_of_another_kind_is_refused(trained: Trainer, part: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match="the checkpoint "):
        Trainer(CONFIG).load_state({**trained.state(), part: value})


def test_the_state_itself_is_taken(trained: Trainer) -> None:
    other = Trainer(replace(CONFIG, epochs=3))
    other.load_state(trained.state())
    assert other.epoch == 2


DIGITS, BRACKETS = "9" * 5000, "[" * 100_000


@pytest.mark.parametrize("value", [DIGITS, BRACKETS], ids=["digits", "brackets"])
def test_numbers_and_brackets_without_end_are_refused(tmp_path: Path, value: str) -> None:
    path = tmp_path / "r.toml"
    path.write_text(f"hidden = {value}")
    with pytest.raises(ConfigError, match=r"r\.toml is not a TOML file"):
        TrainConfig.from_toml(path)
    with pytest.raises(DataError, match="row: not a JSON object"):
        from_json(Row, f'{{"k": {value}}}')
    np.savez(tmp_path / "g.npz", edge_index=[[0], [1]], meta=f'{{"k": {value}}}')
    with pytest.raises(DataError, match=r"g\.npz: meta must be one JSON object as text"):
        load(tmp_path / "g.npz")


class Code:
    """A pickle that runs a command when it is read."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def test_a_checkpoint_never_runs_code(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    buffer = io.BytesIO()
    torch.save({"format": checkpoint.FORMAT, "epoch": 1, "x": Code(f"touch {mark}")}, buffer)
    (tmp_path / "state.pt").write_bytes(buffer.getvalue())
    with pytest.raises(CheckpointError, match=r"state\.pt is cut short or is no checkpoint"):
        checkpoint.load_state(tmp_path)
    assert not mark.exists()
    torch.load(tmp_path / "state.pt", weights_only=False)
    assert mark.exists(), "the file above does run code where it is unpickled"
