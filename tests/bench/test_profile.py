from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from maxk.bench.epochs import profile as module
from maxk.bench.epochs.picture import draw_profile
from maxk.bench.epochs.profile import (
    EpochProfile,
    Profile,
    advice,
    profile,
    profile_data,
    recommend,
)
from maxk.cli.main import main
from maxk.core.errors import ConfigError, MaxKError
from maxk.data.load import load
from maxk.train.config import TrainConfig

DATA = "synthetic:nodes=120,degree=6,communities=3,features=5"
CONFIG = TrainConfig(dataset=DATA, hidden=12, k=1, layers=2, device="cpu")


@pytest.fixture(scope="module")
def found() -> Profile:
    return profile(CONFIG, load(DATA), ks=(6, 3, 40), rounds=2)


def epoch(k: int | None, achieved: float | None, low: float | None = None) -> EpochProfile:
    return EpochProfile(
        k, 10.0, 9.0, 11.0, dict.fromkeys(module.PARTS, 2.5), 100 + (k or 0), 1.0, achieved,
        achieved if low is None else low, achieved,
    )  # fmt: skip


def test_every_k_up_to_the_width_is_measured(found: Profile) -> None:
    assert [row.k for row in found.maxk] == [3, 6]
    assert found.relu.k is None and found.relu.achieved is None
    for row in (found.relu, *found.maxk):
        assert list(row.parts) == list(module.PARTS)
        assert sum(row.parts.values()) >= row.ms * (1 - 1e-9)
        assert row.ms_low <= row.ms <= row.ms_high
        assert (row.parts["select"] > 0) == (row.k is not None)
    assert 0 < found.share < 1
    assert found.ceiling == pytest.approx(1 / (1 - found.share))
    assert all(row.predicted and row.achieved for row in found.maxk)
    assert json.loads(json.dumps(found.to_dict()))["nodes"] == 120


def test_memory_grows_with_k_and_is_least_below_relu(found: Profile) -> None:
    first, second = found.maxk
    assert first.memory < second.memory < found.relu.memory
    # Features, graph, and weights with their moments are part of it.
    assert found.relu.memory > load(DATA).x.nbytes + 16 * found.edges


@pytest.mark.parametrize("model", ["gcn", "gin"])
def test_other_models_are_measured(model: str) -> None:
    config = replace(CONFIG, model=model, layers=1)  # type: ignore[arg-type]
    assert profile(config, load(DATA), ks=(3,), rounds=1).model == model


def test_a_k_above_the_width_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--k must hold a k up to --hidden 12, got \(13,\)"):
        profile(CONFIG, load(DATA), ks=(13,))


def test_the_range_holds_those_near_the_best() -> None:
    rows = [epoch(8, 3.0), epoch(16, 2.5), epoch(32, 2.0), epoch(64, 1.2), epoch(96, 0.9)]
    assert recommend(rows) == (8, 32)
    words = advice(epoch(None, None), rows, 0.8, (8, 32))
    assert words.startswith("Use k from 8 to 32: 2.00 to 3.00 times as fast as ReLU, with 32% more")
    assert "the ceiling is 5.00 times" in words


def test_gains_inside_the_spread_are_none() -> None:
    assert recommend([epoch(8, 1.3, low=0.9), epoch(16, 1.02)]) is None


def test_where_it_will_not_pay_the_reason_is_said() -> None:
    rows = [epoch(8, 1.02), epoch(16, 0.9)]
    little = advice(epoch(None, None), rows, 0.1, None)
    assert little.startswith("MaxK will not pay here: the best, k = 8, reaches 1.02 times")
    assert "aggregation is 10% of an epoch, so no aggregation can make it more than 1.11" in little
    assert "spends elsewhere" in advice(epoch(None, None), rows, 0.8, None)


def test_the_picture_is_written(found: Profile, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = draw_profile(found, tmp_path / "new" / "a.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(MaxKError, match=r"--plot .*a\.tiffy cannot be written: Format 'tiffy'"):
        draw_profile(found, tmp_path / "a.tiffy")


def test_the_command_prints_the_table_and_the_advice(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(CONFIG.to_toml())
    words = ["profile", DATA, "--config", str(settings), "--k", "3,6", "--budget", "0"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "synthetic: 120 nodes" in shown
    assert "k = 3" in shown and "x achieved" in shown
    assert "of ReLU's epoch; without it an epoch would be" in shown
    assert main([*words, "--json"]) == 0
    assert [row["k"] for row in json.loads(capsys.readouterr().out)["maxk"]] == [3, 6]
    assert main(["profile", DATA, "--model", "gat"]) == 2
    assert "--model must be one of sage, gcn, gin" in capsys.readouterr().err


def test_a_bare_graph_and_data_with_several_splits_are_profiled(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("0,1\n1,2\n2,0\n")
    bare = profile_data(replace(CONFIG, dataset=str(tmp_path / "e.csv")))
    assert bare.x.shape == (3, 12)
    assert profile(CONFIG, bare, ks=(3,), rounds=1).edges == 3
    masks = {f"{name}_mask": np.ones((3, 2), bool) for name in ("train", "val", "test")}
    np.savez(tmp_path / "a.npz", edge_index=bare.graph.edge_index(), x=bare.x, y=[0, 1, 1], **masks)
    assert profile_data(replace(CONFIG, dataset=str(tmp_path / "a.npz"))).num_classes == 2


@pytest.mark.gpu
def test_on_a_gpu_a_profile_is_whole() -> None:
    found = profile(replace(CONFIG, device="cuda"), load(DATA), ks=(3, 6), rounds=3)
    assert found.device == torch.cuda.get_device_name()
    assert all(row.memory > 0 and row.achieved for row in found.maxk)
