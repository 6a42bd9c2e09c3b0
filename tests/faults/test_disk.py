"""A full disk or a folder that cannot be written: one sentence, and what was there stays."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from maxk.cli.main import main
from maxk.train import checkpoint
from maxk.train import run as runs
from maxk.train.config import TrainConfig

NOBODY = 65534
SMALL = ["--hidden", "64", "--k", "4", "--layers", "2", "--epochs", "6", "--device", "cpu"]
DATA = ["--dataset", "synthetic:nodes=80,degree=4,communities=3,features=6"]


@pytest.fixture(autouse=True)
def save_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "SAVE_SECONDS", 0.0)


def train(*words: str) -> int:
    return main(["train", *words, "--quiet"])


def one_sentence(capsys: pytest.CaptureFixture[str], text: str) -> None:
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("maxk: ")]
    assert len(told) == 1
    assert text in told[0]


def weights(folder: Path) -> list[bytes]:
    return [(folder / f"{name}.safetensors").read_bytes() for name in ("last", "best")]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    assert train(*DATA, *SMALL, "--out", str(tmp_path / "whole")) == 0
    return tmp_path / "whole"


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_file_past_the_limit_keeps_the_last_good_state(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "cut"
    size = (whole / "state.pt").stat().st_size
    save = checkpoint.save_state

    def limited(folder: Path, state: dict[str, object]) -> None:
        with largest_file(size // 2 if state["epoch"] == 4 else size * 2):
            save(folder, state)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_state", limited)
        assert train(*DATA, *SMALL, "--out", str(out)) == 2
    one_sentence(
        capsys, f"cannot write {out / 'state.pt'}: File too large; free some space and continue"
    )
    assert not list(out.glob(".*.tmp"))
    state = checkpoint.load_state(out)
    assert state is not None
    assert state["epoch"] == 3
    assert train("--resume", str(out)) == 0
    assert weights(out) == weights(whole)


@pytest.mark.parametrize("states", [0.5, 1.1, 1.8, 2.5])
def test_a_full_disk_loses_nothing_that_was_saved(
    small_disk: Path, whole: Path, capsys: pytest.CaptureFixture[str], states: float
) -> None:
    """Whatever the disk has no room for any more: the first state, weights, the second state."""
    room = int(states * (whole / "state.pt").stat().st_size)
    (small_disk / "ballast").write_bytes(bytes(4 * 2**20 - room))
    out = small_disk / "run"
    assert train(*DATA, *SMALL, "--out", str(out)) == 2
    one_sentence(capsys, ": No space left on device; free some space and continue with --resume")
    assert not list(out.glob(".*.tmp"))
    (small_disk / "ballast").unlink()
    assert train("--resume", str(out)) == 0
    assert weights(out) == weights(whole)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write everywhere; another user may not."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_folder_is_one_sentence_and_stays_as_it_was(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Not in tmp_path, which other users cannot reach.
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        out = place / "run"
        assert train(*DATA, *SMALL, "--out", str(out)) == 0
        before = {path.name: path.read_bytes() for path in out.iterdir()}
        for folder in (out, place):
            folder.chmod(0o555)
        try:
            with as_nobody():
                assert train(*DATA, *SMALL, "--out", str(place / "new")) == 2
                one_sentence(capsys, f"cannot write {place / 'new'}: Permission denied; choose a")
                assert train("--resume", str(out), "--epochs", "8") == 2
                one_sentence(capsys, f"cannot write {out / 'config.toml'}: Permission denied")
        finally:
            for folder in (place, out):
                folder.chmod(0o755)
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before
        assert json.loads((out / "summary.json").read_text())["epochs"] == 6
        assert TrainConfig.from_toml(out / "config.toml").epochs == 6
