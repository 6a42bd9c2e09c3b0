"""A checkpoint bound to the machine that made it, or cut short while it was saved."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from maxk.cli.main import main
from maxk.train import checkpoint
from maxk.train import run as runs
from maxk.train.config import TrainConfig
from maxk.train.folder import open_run, resumed_config
from maxk.train.loop import Trainer

SMALL = TrainConfig(
    dataset="synthetic:nodes=60,degree=4,communities=3,features=6",
    hidden=8, k=4, layers=2, epochs=6, device="cpu",
)  # fmt: skip


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "epochs.jsonl").read_text().splitlines()]


def test_a_run_of_a_gpu_opens_without_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Saved as a GPU would have saved it: the settings name a device that is not here.
    folder, _ = runs.run(replace(SMALL, epochs=1, out="made"))
    settings = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(settings.replace('device = "cpu"', 'device = "cuda"'))
    state = torch.load(folder / "state.pt", weights_only=True)
    assert all(tensor.device.type == "cpu" for tensor in state["model"].values())
    trainer = open_run(folder, **({"device": "cpu"} if torch.cuda.is_available() else {}))
    weights = checkpoint.load_weights(folder / "best.safetensors")
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(tensor.cpu(), weights[name])
    assert main(["evaluate", str(folder)]) == 0


@pytest.mark.parametrize("name", ["state.pt", "best.safetensors"])
def test_a_run_goes_on_from_the_last_whole_checkpoint(tmp_path, monkeypatch, caplog, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "SAVE_SECONDS", 0.0)
    whole, _ = runs.run(replace(SMALL, out="whole"))

    def stop(trainer: Trainer, record: object) -> None:
        if trainer.epoch == 3:
            raise RuntimeError("the power went")

    with pytest.raises(RuntimeError, match="the power went"):
        runs.run(replace(SMALL, out="cut"), runs.Watcher(on_epoch=stop))
    path = Path("cut", name)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    if name == "state.pt":
        # Epoch 2 was the newest save, epoch 1 the one before.
        assert checkpoint.load_state(Path("cut"))["epoch"] == 1
        assert "state.pt is cut short or is no checkpoint; continuing from" in caplog.text
    folder, summary = runs.run(resumed_config("cut"))
    assert summary["epochs"] == 6
    assert losses(folder) == losses(whole)
    for file in ("last.safetensors", "best.safetensors"):
        assert (folder / file).read_bytes() == (whole / file).read_bytes()
