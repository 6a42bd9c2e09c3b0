"""Examples run, and what they promise holds."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(
    name: str,
    arguments: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """What an example prints, run as a script in a folder of its own."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with torch.random.fork_rng():
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_the_layer_agrees_with_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = run("01_maxk_layer.py", [], tmp_path, monkeypatch, capsys)
    differences = re.findall(r"largest difference, \w+: +(\S+)", printed)
    assert len(differences) == 2
    assert all(float(difference) < 1e-5 for difference in differences)


def test_both_nonlinearities_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = run("02_train.py", ["--epochs", "30"], tmp_path, monkeypatch, capsys)
    scores = dict(re.findall(r"(relu|maxk): test accuracy ([\d.]+)", printed))
    # 10 classes: chance is 0.1.
    assert {name: float(score) > 0.7 for name, score in scores.items()} == {
        "relu": True,
        "maxk": True,
    }


def test_a_lightning_module_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = run("05_lightning.py", [], tmp_path, monkeypatch, capsys)
    assert float(re.findall(r"test accuracy ([\d.]+)%", printed)[0]) > 80
    assert list(tmp_path.iterdir()) == []


def test_the_trainer_of_a_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = run("06_trainer_api.py", [], tmp_path, monkeypatch, capsys)
    assert "cpu: epoch 1 of 60, best accuracy" in printed.replace("cuda:0", "cpu")
    assert float(re.findall(r"is the best: test ([\d.]+)%", printed)[0]) > 80
    assert re.search(r"epoch +1 .*\n.*\n(epoch .*\n)+success: best seen", printed)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_is_run_by_some_test(path: Path) -> None:
    tests = Path(__file__).parent.rglob("test_*.py")
    assert any(path.name in test.read_text(encoding="utf-8") for test in tests)
