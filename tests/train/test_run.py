from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from maxk.core.errors import CheckpointError, ConfigError, MaxKError, TrainingError
from maxk.train import run as runs
from maxk.train.config import TrainConfig
from maxk.train.folder import open_run, resumed_config, saved_config
from maxk.train.loop import Trainer
from maxk.train.run import Interrupted, Watcher, run

DATA = "synthetic:nodes=80,degree=4,communities=3,features=6"
SMALL = TrainConfig(dataset=DATA, hidden=8, k=4, layers=2, epochs=10, device="cpu")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def losses(folder: Path) -> list[float]:
    lines = (folder / "epochs.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def weights(folder: Path) -> bytes:
    return (folder / "last.safetensors").read_bytes()


@pytest.fixture
def whole(here: Path) -> Path:
    """A run that nothing stopped."""
    return run(replace(SMALL, out="whole"))[0]


def stopped_at(epoch: int, config: TrainConfig, number: int = signal.SIGINT) -> Path:
    """Sends a signal in an epoch and returns the folder of the run that it ended."""

    def on_epoch(trainer: object, record: runs.Epoch) -> None:
        if record.epoch == epoch:
            os.kill(os.getpid(), number)

    with pytest.raises(Interrupted) as caught:
        run(config, Watcher(on_epoch=on_epoch))
    assert caught.value.signal == number
    return caught.value.folder


def test_a_run_folder_holds_what_is_promised(here: Path) -> None:
    folder, summary = run(SMALL)
    assert folder == Path("runs/synthetic-sage-maxk-k4")
    names = {p.name for p in folder.iterdir()}
    assert names >= {
        "config.toml",
        "environment.json",
        "epochs.jsonl",
        "best.safetensors",
        "last.safetensors",
        "state.pt",
        "summary.json",
    }
    assert not any(name.endswith(".tmp") for name in names)
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert set(summary) >= {
        "dataset", "model", "nonlinearity", "k", "metric", "best_epoch", "val", "test",
        "test_last", "seconds_per_epoch", "peak_memory", "seed",
    }  # fmt: skip
    assert len(losses(folder)) == 10
    assert TrainConfig.from_toml(folder / "config.toml") == SMALL
    facts = json.loads((folder / "environment.json").read_text())
    assert facts["torch"] == torch.__version__
    assert facts["device"] == "cpu"


def test_an_unnamed_run_takes_the_next_free_folder(here: Path) -> None:
    short = replace(SMALL, epochs=1)
    assert [run(short)[0].name for _ in range(2)] == [
        "synthetic-sage-maxk-k4",
        "synthetic-sage-maxk-k4-2",
    ]


def test_a_folder_in_use_is_left_alone(whole: Path) -> None:
    with pytest.raises(ConfigError, match="--out whole already holds a run; continue it with"):
        run(replace(SMALL, out="whole"))
    other = Path("other")
    other.mkdir()
    (other / "letter.txt").write_text("mine")
    with pytest.raises(ConfigError, match="it holds other files"):
        run(replace(SMALL, out="other"))
    assert [p.name for p in other.iterdir()] == ["letter.txt"]


def test_a_folder_that_cannot_be_made_is_one_sentence(here: Path) -> None:
    (here / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot write file/run: Not a directory; choose"):
        run(replace(SMALL, out="file/run"))


def test_wrong_data_leaves_no_folder(here: Path) -> None:
    with pytest.raises(MaxKError):
        run(replace(SMALL, dataset="nowhere.npz"))
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_run_that_fails_in_its_first_epoch_leaves_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch, seeds: int
) -> None:
    monkeypatch.setattr(Trainer, "_train", lambda self: (torch.tensor(float("nan")), {}))
    with pytest.raises(TrainingError, match="the loss is nan in epoch 1"):
        run(replace(SMALL, out="failed", seeds=seeds))
    assert list(here.iterdir()) == []


def test_a_run_that_fails_later_keeps_its_best_weights(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, broken = Trainer._train, (torch.tensor(float("inf")), {})
    monkeypatch.setattr(Trainer, "_train", lambda self: broken if self.epoch == 3 else train(self))
    with pytest.raises(TrainingError, match="the loss is inf in epoch 4"):
        run(replace(SMALL, out="failed"))
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert len(losses(here / "failed")) == 3
    assert 0 <= open_run(here / "failed").evaluate()["test"] <= 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_epoch_and_resuming_gives_the_same_bits(
    whole: Path, number: int
) -> None:
    handler = signal.getsignal(number)
    folder = stopped_at(5, replace(SMALL, out="cut"), number)
    assert signal.getsignal(number) == handler
    assert len(losses(folder)) == 5
    assert not (folder / "summary.json").exists()
    run(resumed_config(folder))
    assert weights(folder) == weights(whole)
    assert losses(folder) == losses(whole)
    assert (folder / "best.safetensors").read_bytes() == (whole / "best.safetensors").read_bytes()


KILLED = """
import os, signal, sys
from pathlib import Path
from maxk.train import run as runs
from maxk.train.config import TrainConfig

runs.SAVE_SECONDS = 0.0
real, saves = Path.replace, 0

def replace(self, target):
    global saves
    if Path(target).name == "state.pt":
        saves += 1
        if saves == 5:
            os.kill(os.getpid(), signal.SIGKILL)
    return real(self, target)

Path.replace = replace
runs.run(TrainConfig.from_toml(sys.argv[1], out="killed"))
"""


def test_a_kill_while_saving_loses_nothing_that_was_saved(whole: Path, here: Path) -> None:
    settings = here / "settings.toml"
    settings.write_text(SMALL.to_toml())
    done = subprocess.run([sys.executable, "-c", KILLED, str(settings)], check=False)
    assert done.returncode == -signal.SIGKILL
    folder = here / "killed"
    # The newest state was moved aside and the new one had not arrived.
    assert not (folder / "state.pt").exists()
    run(resumed_config(folder))
    assert weights(folder) == weights(whole)
    assert losses(folder) == losses(whole)


def test_a_kill_before_the_first_save_starts_again(whole: Path, here: Path) -> None:
    folder = stopped_at(1, replace(SMALL, out="cut"))
    (folder / "state.pt").unlink()
    run(resumed_config(folder))
    assert weights(folder) == weights(whole)


@pytest.mark.parametrize(
    "name", ["state.pt", "last.safetensors", "best.safetensors", "epochs.jsonl"]
)
def test_any_file_cut_to_half_is_made_whole_again(
    whole: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setattr(runs, "SAVE_SECONDS", 0.0)
    folder = stopped_at(5, replace(SMALL, out="cut"))
    path = folder / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with caplog.at_level(logging.WARNING):
        run(resumed_config(folder))
    if name == "state.pt":
        assert "state.pt is cut short or is no checkpoint; continuing from" in caplog.text
    assert weights(folder) == weights(whole)
    assert losses(folder) == losses(whole)


def test_a_finished_run_can_be_made_longer_and_no_different(here: Path) -> None:
    longer, _ = run(replace(SMALL, epochs=12, out="longer"))
    folder, _ = run(replace(SMALL, out="short"))
    _, summary = run(resumed_config(folder, epochs=12))
    assert weights(folder) == weights(longer)
    assert summary["epochs"] == 12
    assert saved_config(folder).epochs == 12
    with pytest.raises(ConfigError, match=r"--hidden cannot change with --resume: .* got 16"):
        resumed_config(folder, hidden=16)
    with pytest.raises(ConfigError, match="--out cannot go with --resume"):
        resumed_config(folder, out="elsewhere")


def test_resuming_what_is_no_run_is_refused(here: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"nothing is no run folder: it holds no config\.toml"
    ):
        resumed_config("nothing")
    (here / "config.toml").write_text("colour = 1")
    with pytest.raises(CheckpointError, match="unknown key 'colour'"):
        resumed_config(here)


def test_seeds_have_folders_of_their_own_and_one_summary(here: Path) -> None:
    folder, summary = run(replace(SMALL, seeds=3, seed=4, epochs=3, out="three"))
    assert summary["seeds"] == [4, 5, 6]
    tests = [r["test"] for r in summary["runs"]]
    mean = sum(tests) / 3
    assert summary["test"] == pytest.approx(mean)
    spread = (sum((t - mean) ** 2 for t in tests) / 2) ** 0.5
    assert summary["test_sd"] == pytest.approx(spread)
    single, _ = run(replace(SMALL, seed=5, epochs=3, out="one"))
    assert weights(folder / "seed-5") == weights(single)
    assert weights(folder / "seed-4") != weights(single)


def test_several_seeds_resume_where_they_stopped(here: Path) -> None:
    config = replace(SMALL, seeds=2, epochs=4, out="whole")
    whole, _ = run(config)
    count = 0

    def on_epoch(trainer: object, record: runs.Epoch) -> None:
        nonlocal count
        count += 1
        if count == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted) as caught:
        run(replace(config, out="cut"), Watcher(on_epoch=on_epoch))
    assert caught.value.folder == Path("cut")
    _, summary = run(resumed_config("cut"))
    assert summary["seeds"] == [0, 1]
    for seed in ("seed-0", "seed-1"):
        assert weights(Path("cut") / seed) == weights(whole / seed)


def test_a_saved_run_opens_with_its_best_weights(whole: Path) -> None:
    summary = json.loads((whole / "summary.json").read_text())
    assert open_run(whole).evaluate()["test"] == summary["test"]


def test_a_run_with_several_seeds_opens_one_at_a_time(here: Path) -> None:
    folder, summary = run(replace(SMALL, seeds=2, epochs=2, out="two"))
    with pytest.raises(CheckpointError, match="holds 2 seeds; name one of them, for example two/"):
        open_run(folder)
    assert open_run(folder / "seed-1").evaluate()["test"] == summary["runs"][1]["test"]


def test_broken_weights_are_refused_by_name(whole: Path) -> None:
    path = whole / "best.safetensors"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(CheckpointError, match=r"whole/best\.safetensors is cut short"):
        open_run(whole)


def test_another_environment_is_said(whole: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = whole / "environment.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "threads": 1000}))
    with caplog.at_level(logging.WARNING):
        run(resumed_config(whole))
    assert "threads was 1000 and is now" in caplog.text


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CheckpointError, match=f"{folder} is no run folder"):
            open_run(folder)
