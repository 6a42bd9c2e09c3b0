"""A saved run holds its widths: what it is good for needs no data set but its inputs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from maxk.cli.main import main
from maxk.core.errors import CheckpointError
from maxk.train.folder import open_run
from maxk.train.loop import Trainer

NODES = 60
SMALL = ["--hidden", "8", "--k", "4", "--layers", "2", "--device", "cpu", "--quiet"]


def save(name: str, *, features: int = 5, classes: int = 3, labels: bool = True) -> None:
    ids = np.arange(NODES)
    x = np.random.default_rng(0).normal(size=(NODES, features)).astype(np.float32)
    arrays = {"edge_index": np.stack([ids, (ids + 1) % NODES]), "x": x}
    if labels:
        arrays |= {
            "y": ids % classes,
            "train_mask": ids % 4 < 2,
            "val_mask": ids % 4 == 2,
            "test_mask": ids % 4 == 3,
        }
    np.savez(name, **arrays)  # type: ignore[arg-type]


@pytest.fixture(params=["layer", "batch"])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    save("data.npz")
    words = ["train", "--dataset", "data.npz", *SMALL, "--epochs", "3", "--out", "run"]
    assert main([*words, "--norm", request.param]) == 0
    return "run"


def test_scores_and_predictions_are_those_of_the_trainer(run: str) -> None:
    summary = json.loads(Path(run, "summary.json").read_text())
    saved = open_run(run)
    trainer = Trainer(saved.config)
    trainer.load_weights(saved.model.state_dict())
    assert torch.equal(saved.predict(), trainer.predict())
    assert saved.evaluate() == trainer.evaluate()
    assert saved.evaluate()["test"] == summary["test"]
    assert (saved.in_channels, saved.out_channels) == (5, 3)


def test_no_optimiser_is_made_and_no_random_number_drawn(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise AssertionError("an optimiser was made")

    monkeypatch.setattr(torch.optim, "Adam", refuse)
    before = torch.get_rng_state()
    saved = open_run(run)
    saved.predict()
    saved.evaluate()
    assert torch.equal(torch.get_rng_state(), before)


def test_predictions_need_no_labels_and_no_splits(run: str) -> None:
    expected = open_run(run).predict()
    save("inputs.npz", labels=False)
    assert torch.equal(open_run(run, dataset="inputs.npz").predict(), expected)
    assert main(["predict", run, "--dataset", "inputs.npz", "--device", "cpu"]) == 0
    with np.load("predictions.npz") as arrays:
        assert np.array_equal(arrays["logits"], expected.numpy())


def test_an_export_needs_no_data_at_all(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch_geometric")
    Path("data.npz").unlink()
    assert main(["export", run]) == 0
    weights = load_file("model.safetensors")
    assert all(torch.equal(weights[n], t) for n, t in open_run(run).model.state_dict().items())
    capsys.readouterr()
    assert main(["evaluate", run]) == 2
    assert "data.npz" in capsys.readouterr().err


def test_a_run_of_an_earlier_release_opens_by_its_tensors(run: str) -> None:
    path = Path(run, "best.safetensors")
    expected = open_run(run).predict()
    with safe_open(path, framework="pt") as file:
        note = json.loads(file.metadata()["maxk"])
    for name in ("in_channels", "out_channels", "multi_label", "contents"):
        del note[name]
    save_file(load_file(path), path, metadata={"maxk": json.dumps(note)})
    saved = open_run(run)
    assert (saved.in_channels, saved.out_channels) == (5, 3)
    assert not saved.multi_label
    assert torch.equal(saved.predict(), expected)
    # Weights of another program carry no note at all.
    save_file(load_file(path), path)
    assert torch.equal(open_run(run).predict(), expected)


def test_weights_of_another_model_are_refused(run: str) -> None:
    path = Path(run, "best.safetensors")
    save_file({"a": torch.ones(3)}, path)
    with pytest.raises(CheckpointError, match="weights of run do not fit the model"):
        open_run(run)


def test_other_widths_are_named(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    save("wide.npz", features=6)
    save("many.npz", classes=4)
    save("few.npz", classes=2)
    capsys.readouterr()
    assert main(["evaluate", run, "--dataset", "wide.npz"]) == 2
    assert (
        "features of wide do not fit the model of run: they have 6 columns, the model takes 5"
        in (capsys.readouterr().err)
    )
    assert main(["predict", run, "--dataset", "wide.npz"]) == 2
    capsys.readouterr()
    assert main(["evaluate", run, "--dataset", "many.npz"]) == 2
    assert "they have 4 classes, the model has 3 outputs" in capsys.readouterr().err
    assert main(["evaluate", run, "--dataset", "few.npz"]) == 0
