from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from maxk.core.errors import CheckpointError
from maxk.train import checkpoint


def epochs(folder: Path, *numbers: int) -> None:
    for number in numbers:
        checkpoint.save_state(folder, {"epoch": number, "model": {"w": torch.ones(50) * number}})


def loaded(folder: Path) -> int | None:
    state = checkpoint.load_state(folder)
    return None if state is None else state["epoch"]


def test_the_newest_state_is_read_and_the_one_before_stays(tmp_path: Path) -> None:
    assert loaded(tmp_path) is None
    epochs(tmp_path, 1, 2, 3)
    assert loaded(tmp_path) == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["state.previous.pt", "state.pt"]


def test_states_open_with_weights_only(tmp_path: Path) -> None:
    epochs(tmp_path, 1)
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert state["model"]["w"].sum() == 50


@pytest.mark.parametrize("damage", ["half", "empty", "foreign", "other"])
def test_a_broken_newest_state_is_named_and_the_last_good_one_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    epochs(tmp_path, 1, 2)
    newest = tmp_path / "state.pt"
    data = newest.read_bytes()
    if damage == "other":
        torch.save({"format": "someone else's", "epoch": 2, "model": {}}, newest)
    else:
        newest.write_bytes(
            {"half": data[: len(data) // 2], "empty": b"", "foreign": b"GIF89a"}[damage]
        )
    with caplog.at_level(logging.WARNING):
        assert loaded(tmp_path) == 1
    assert str(newest) in caplog.text
    assert "epoch 1" in caplog.text
    # The broken file must not push the good one out at the next save.
    epochs(tmp_path, 2)
    assert torch.load(tmp_path / "state.previous.pt", weights_only=True)["epoch"] == 1


def test_without_a_whole_state_all_are_named(tmp_path: Path) -> None:
    epochs(tmp_path, 1, 2)
    for name in ("state.pt", "state.previous.pt"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"state\.pt .*state\.previous\.pt "):
        checkpoint.load_state(tmp_path)


def test_a_stop_between_the_two_renames_loses_nothing(tmp_path: Path) -> None:
    epochs(tmp_path, 1, 2)
    (tmp_path / "state.pt").rename(tmp_path / "state.previous.pt")
    assert loaded(tmp_path) == 2


def test_a_full_disk_leaves_the_old_file_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs(tmp_path, 1)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CheckpointError, match=r"state\.pt: No space left on device; free some"):
        epochs(tmp_path, 2)
    assert loaded(tmp_path) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["state.pt"]


def flipped(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 16
    path.write_bytes(data)


def test_a_flipped_bit_of_a_state_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    epochs(tmp_path, 1, 2)
    newest = tmp_path / "state.pt"
    # In the middle of the weights, where torch.load reads whatever is there.
    place = newest.read_bytes().index((2 * torch.ones(50)).numpy().tobytes())
    flipped(newest, place + 100)
    with caplog.at_level(logging.WARNING):
        assert loaded(tmp_path) == 1
    assert "state.pt is damaged: " in caplog.text


def test_a_flipped_bit_of_weights_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    checkpoint.save_weights(path, {"a": torch.ones(100), "b": torch.tensor(3.0)}, {"epoch": 1})
    flipped(path, path.stat().st_size - 100)
    with pytest.raises(CheckpointError, match=r"a\.safetensors is damaged: its weights"):
        checkpoint.load_weights(path)


def test_weights_of_others_carry_no_checksum(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3, dtype=torch.bfloat16)}, tmp_path / "a.safetensors")
    assert checkpoint.load_weights(tmp_path / "a.safetensors")["a"].sum() == 3


def test_weights_keep_their_values_and_names(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    weights = {"a.b": torch.randn(3, 4), "c": torch.randn(4, 3).t()}
    checkpoint.save_weights(path, weights, {"epoch": "3"})
    back = checkpoint.load_weights(path)
    assert all(torch.equal(back[name], weights[name]) for name in weights)
    assert set(back) == set(weights)


def test_broken_weights_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        checkpoint.load_weights(path)
    checkpoint.save_weights(path, {"a": torch.zeros(100)}, {})
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"a\.safetensors is cut short"):
        checkpoint.load_weights(path)
