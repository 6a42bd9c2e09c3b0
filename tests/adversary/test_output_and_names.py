"""Terminals that cannot show a sign, pipes that close, and names with spaces."""

from __future__ import annotations

import csv
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from maxk.cli.main import main
from maxk.interop.export import export_pyg
from maxk.nn import GraphSAGE
from maxk.train import checkpoint
from maxk.train.config import TrainConfig

DATA = "synthetic:nodes=60,degree=4,communities=3,features=6"
SMALL = ["--dataset", DATA, "--hidden", "8", "--k", "4", "--layers", "1", "--device", "cpu"]
MAXK = [sys.executable, "-m", "maxk"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def in_ascii(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    return subprocess.run(
        [*MAXK, *words], env=environment, capture_output=True, text=True, check=False
    )


def test_an_ascii_terminal_shows_the_result_of_several_seeds() -> None:
    done = in_ascii("train", *SMALL, "--epochs", "1", "--seeds", "2", "--out", "two")
    assert done.returncode == 0, done.stderr
    assert " % +- " in done.stdout
    assert "Traceback" not in done.stderr


def test_an_ascii_terminal_shows_a_name_that_it_has_no_signs_for(here: Path) -> None:
    done = in_ascii("train", *SMALL, "--epochs", "1", "--out", "läufe/ñ")
    assert done.returncode == 0, done.stderr
    assert (here / "läufe" / "ñ" / "summary.json").is_file()
    done = in_ascii("evaluate", "läufe/x")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_a_name_that_is_not_utf8_is_refused_or_shown(here: Path) -> None:
    name = os.fsdecode(b"data-\xff.npz")
    done = subprocess.run(
        [*MAXK, "train", "--dataset", name], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    done = subprocess.run(
        [*MAXK, "evaluate", os.fsdecode(b"run-\xff")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["data", "list"], ["data", "list", "--json"], ["info"], ["-h"]])
def test_a_pipe_that_closes_early_ends_the_command_quietly(words: list[str]) -> None:
    process = subprocess.Popen(
        [*MAXK, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    shown = process.stderr.read()
    assert process.wait() == 141
    assert shown == ""


def test_the_hint_after_a_signal_can_be_pasted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import signal

    from maxk.train.loop import Trainer

    step = Trainer.train_epoch

    def then_stop(self: Trainer) -> object:
        record = step(self)
        os.kill(os.getpid(), signal.SIGINT)
        return record

    monkeypatch.setattr(Trainer, "train_epoch", then_stop)
    assert main(["train", *SMALL, "--epochs", "3", "--out", "my run", "--quiet"]) == 130
    monkeypatch.undo()
    hint = capsys.readouterr().err.partition("continue with ")[2]
    words = shlex.split(hint)
    assert words == ["maxk", "train", "--resume", str(Path("my run"))]


def test_the_hint_at_a_folder_in_use_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", *SMALL, "--epochs", "1", "--out", "my run", "--quiet"]
    assert main(words) == 0
    assert main(words) == 2
    assert "--resume 'my run'" in capsys.readouterr().err


@pytest.fixture
def run() -> str:
    assert main(["train", *SMALL, "--epochs", "1", "--out", "run", "--quiet"]) == 0
    return "run"


def test_predictions_are_written_as_the_suffix_says(
    run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", run, "--out", "preds.csv", "--device", "cpu"]) == 0
    assert main(["predict", run, "--out", "preds.npz", "--device", "cpu"]) == 0
    with Path("preds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with np.load("preds.npz") as arrays:
        assert [int(r["prediction"]) for r in rows] == arrays["prediction"].tolist()
        logits = [[float(r[f"logit_{c}"]) for c in range(3)] for r in rows]
        assert np.array_equal(np.array(logits, np.float32), arrays["logits"])
    assert [r["node"] for r in rows] == [str(n) for n in range(60)]
    capsys.readouterr()
    for name in ("preds.txt", "preds", "preds.parquet"):
        assert main(["predict", run, "--out", name]) == 2
        assert f"--out must end in .npz or .csv, got {name}" in capsys.readouterr().err
        assert not Path(name).exists()


def test_predictions_of_several_labels_are_columns_of_zeros_and_ones() -> None:
    ids = np.arange(40)
    np.savez(
        "many.npz",
        edge_index=np.stack([ids, (ids + 1) % 40]),
        x=np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32),
        y=np.stack([ids % 2, (ids // 2) % 2], 1).astype(np.float32),
        train_mask=ids % 3 == 0,
        val_mask=ids % 3 == 1,
        test_mask=ids % 3 == 2,
    )
    words = ["--hidden", "8", "--k", "4", "--layers", "1", "--device", "cpu", "--quiet"]
    assert main(["train", "--dataset", "many.npz", *words, "--epochs", "1", "--out", "m"]) == 0
    assert main(["predict", "m", "--out", "p.CSV", "--device", "cpu"]) == 0
    with Path("p.CSV").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["node", "label_0", "label_1", "logit_0", "logit_1"]
    for row in rows:
        for label in (0, 1):
            assert row[f"label_{label}"] == str(int(float(row[f"logit_{label}"]) > 0))


@pytest.mark.parametrize("name", ["my model", "model-2", "2nd", "torch", "class", "json"])
def test_an_export_of_any_name_can_be_imported(
    run: str, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    pytest.importorskip("torch_geometric")
    capsys.readouterr()
    assert main(["export", run, "--out", f"{name}.safetensors"]) == 0
    first, load, use = capsys.readouterr().out.splitlines()
    assert f"{name}.safetensors" in first
    made = use.strip().removeprefix("logits = ").removesuffix("(data.x, data.edge_index)")
    code = f"{load.strip()}; print(type({made}).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "Network", done.stderr


def tied() -> GraphSAGE:
    torch.manual_seed(0)
    model = GraphSAGE(4, 8, 2, 3, k=4).eval()
    model.layers[1].lin_l.weight = model.layers[0].lin_l.weight
    return model


def test_a_model_with_tied_weights_is_exported_whole(here: Path) -> None:
    pytest.importorskip("torch_geometric")
    from safetensors.torch import load_file

    model = tied()
    path, _ = export_pyg(model, here / "tied.safetensors")
    weights = load_file(path)
    assert set(weights) == set(model.state_dict())
    assert all(torch.equal(weights[n], t) for n, t in model.state_dict().items())


def test_weights_that_share_memory_are_saved_whole(here: Path) -> None:
    whole = torch.arange(6.0)
    weights = {"a": whole, "b": whole, "c": whole[2:4], **tied().state_dict()}
    checkpoint.save_weights(here / "w.safetensors", weights, {})
    back = checkpoint.load_weights(here / "w.safetensors")
    assert set(back) == set(weights)
    assert all(torch.equal(back[n], t) for n, t in weights.items())


def test_settings_that_begin_with_a_byte_order_mark_are_read(here: Path) -> None:
    path = here / "settings.toml"
    path.write_bytes(b"\xef\xbb\xbfhidden = 64\nk = 8\n")
    assert TrainConfig.from_toml(path) == TrainConfig(hidden=64, k=8)
    path.write_bytes("hidden = 64\n".encode("utf-16"))
    assert main(["train", "--config", "settings.toml"]) == 2
