"""No folder of the user's can be written, as in a container: runs, and one line says what to do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import maxk

LINE = "set MAXK_CACHE_DIR to a folder that you may write"
# Root may write where others may not, so that os.access alone would prove nothing: these folders
# lie below a file, where nobody can make one.
TRAIN = ["train", "--dataset", "digits", "--epochs", "1", "--hidden", "32", "--k", "4"]


@pytest.fixture
def container(tmp_path: Path) -> dict[str, str]:
    """A package in a folder whose __pycache__ cannot be made, and a HOME below a file."""
    site = tmp_path / "site"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(maxk.__file__).parent, site / "maxk", ignore=ignored)
    for folder in [site / "maxk", *(site / "maxk").rglob("*")]:
        if folder.is_dir():
            (folder / "__pycache__").write_text("a file where a folder would be")
    (tmp_path / "home").write_text("a file where a folder would be")
    kept = {n: v for n, v in os.environ.items() if n not in ("MAXK_CACHE_DIR", "XDG_CACHE_HOME")}
    return {**kept, "HOME": str(tmp_path / "home"), "PYTHONPATH": str(site), "TMPDIR": "/tmp"}


def run(folder: Path, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "maxk", *words], capture_output=True, text=True, timeout=300,
        cwd=folder, env=environment, check=False,
    )  # fmt: skip


def test_training_runs_without_a_cache_and_says_so_in_one_line(
    tmp_path: Path, container: dict[str, str]
) -> None:
    done = run(tmp_path, container, *TRAIN, "--device", "cpu", "--out", "run", "--quiet")
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert LINE in done.stderr
    assert f"{tmp_path / 'home'}: Not a directory" in done.stderr


def test_the_advice_of_the_line_helps(tmp_path: Path, container: dict[str, str]) -> None:
    given = {**container, "MAXK_CACHE_DIR": str(tmp_path / "given")}
    done = run(tmp_path, given, *TRAIN, "--device", "cpu", "--out", "run", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert list((tmp_path / "given" / "cpu").glob("select-*.numba"))
    info = run(tmp_path, given, "info")
    assert "no problems found" in info.stdout
    assert "can be written" in info.stdout


def test_info_names_both_folders_and_helps(tmp_path: Path, container: dict[str, str]) -> None:
    info = run(tmp_path, container, "info", "--json")
    assert info.returncode == 0, info.stderr
    facts = json.loads(info.stdout)
    below = tmp_path / "home" / ".cache" / "maxk"
    assert facts["caches"] == {
        "cpu": {"folder": str(below / "cpu"), "writable": False},
        "cuda": {"folder": str(below / "kernels"), "writable": False},
    }
    assert [problem["cure"] for problem in facts["problems"]] == [LINE]
    assert "cannot be written" in run(tmp_path, container, "info").stdout


def test_a_user_without_a_home_folder(tmp_path: Path, container: dict[str, str]) -> None:
    code = (
        "import pathlib; pathlib.Path.home = classmethod(lambda cls: (_ for _ in ()).throw("
        "RuntimeError('Could not determine home directory.')))\n"
        "import logging, torch, maxk\n"
        "print(maxk.maxk(torch.tensor([[1.0, 3, 2]]), 1).columns.tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False,
        env=container,
    )  # fmt: skip
    assert done.stdout.strip() == "[[1]]", done.stderr
    assert done.stderr.splitlines() == [
        "compiled kernels cannot be kept (you have no home folder), so every process compiles them "
        f"again; {LINE}"
    ]
