"""A saved run and data of the same shape, but with other contents."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from maxk.cli.main import main
from maxk.core.errors import CheckpointError
from maxk.data.load import load
from maxk.train.config import TrainConfig
from maxk.train.loop import Trainer

NODES = 60
WORDS = ["--hidden", "8", "--k", "4", "--layers", "1", "--device", "cpu"]


def arrays() -> dict[str, np.ndarray]:
    ids = np.arange(NODES)
    rng = np.random.default_rng(0)
    return {
        "edge_index": np.stack([ids, (ids + 1) % NODES]),
        "edge_weight": np.ones(NODES, np.float32),
        "x": rng.normal(size=(NODES, 5)).astype(np.float32),
        "y": ids % 2,
        "train_mask": ids % 3 == 0,
        "val_mask": ids % 3 == 1,
        "test_mask": ids % 3 == 2,
    }


def other_edges(a: dict[str, np.ndarray]) -> None:
    a["edge_index"][1, 3] = 17


def other_weights(a: dict[str, np.ndarray]) -> None:
    a["edge_weight"][3] = 2


def other_features(a: dict[str, np.ndarray]) -> None:
    a["x"][7, 2] += 1


def other_labels(a: dict[str, np.ndarray]) -> None:
    a["y"][9] = 1 - a["y"][9]


def other_split(a: dict[str, np.ndarray]) -> None:
    a["val_mask"], a["test_mask"] = a["test_mask"], a["val_mask"]


CHANGES: list[tuple[Callable[[dict[str, np.ndarray]], None], str]] = [
    (other_edges, "edges"),
    (other_weights, "edges"),
    (other_features, "features"),
    (other_labels, "labels"),
    (other_split, "splits"),
]


def save(change: Callable[[dict[str, np.ndarray]], None] | None = None) -> None:
    made = arrays()
    if change is not None:
        change(made)
    np.savez("data.npz", **made)  # type: ignore[arg-type]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    save()
    words = ["train", "--dataset", "data.npz", *WORDS, "--epochs", "2", "--out", "run", "--quiet"]
    assert main(words) == 0
    return "run"


@pytest.mark.parametrize(("change", "part"), CHANGES)
def test_a_run_refuses_to_continue_on_other_data_unless_told_to(
    run: str, capsys: pytest.CaptureFixture[str], change: Callable[..., None], part: str
) -> None:
    save(change)
    capsys.readouterr()
    resume = ["train", "--resume", run, "--epochs", "4", "--quiet"]
    assert main(resume) == 2
    shown = capsys.readouterr().err
    assert f"has other {part} than" in shown
    assert "--other-data" in shown
    assert shown.count("\n") == 1
    assert len(Path(run, "epochs.jsonl").read_text().splitlines()) == 2
    assert main([*resume, "--other-data"]) == 0
    assert len(Path(run, "epochs.jsonl").read_text().splitlines()) == 4
    # From then on these are the data of the run.
    assert main(["train", "--resume", run, "--epochs", "5", "--quiet"]) == 0


@pytest.mark.parametrize(("change", "part"), CHANGES)
@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_what_differs_is_noted_where_a_run_is_only_read(
    run: str, capsys: pytest.CaptureFixture[str], change: Callable[..., None], part: str,
    command: str,
) -> None:  # fmt: skip
    words = [command, run, "--device", "cpu"]
    capsys.readouterr()
    assert main(words) == 0
    assert capsys.readouterr().err == ""
    save(change)
    assert main(words) == 0
    assert (
        capsys.readouterr().err == f"data has other {part} than the data that run was trained on\n"
    )


def test_a_moved_file_is_the_same_data(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("data.npz").rename("moved.npz")
    assert main(["evaluate", run, "--dataset", "moved.npz", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert set(json.loads(captured.out)) >= {"train", "val", "test"}
    resume = ["train", "--resume", run, "--dataset", "moved.npz", "--epochs", "3", "--quiet"]
    assert main(resume) == 0


@pytest.mark.parametrize("sparse", [False, True])
def test_a_state_names_all_that_differs(run: str, sparse: bool) -> None:
    data = load("data.npz")
    data = replace(data, x=data.x.to_sparse_csr()) if sparse else data
    config = TrainConfig(hidden=8, k=4, layers=1, epochs=2, device="cpu")
    trainer = Trainer(config, data)
    state = trainer.state()
    Trainer(config, replace(data)).load_state(state)
    changed = replace(data, x=data.x * 2, y=1 - data.y)
    with pytest.raises(CheckpointError, match="other features and labels"):
        Trainer(config, changed).load_state(state)
    # A state of an earlier release does not say what its data were.
    del state["contents"]
    Trainer(config, changed).load_state(state)
    assert torch.equal(data.x.to_dense() * 2, changed.x.to_dense())
