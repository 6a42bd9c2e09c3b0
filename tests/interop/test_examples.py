"""The examples of coming from PyG and DGL run and learn."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from standins import StandInDGLGraph

SMALL = ("--dataset", "synthetic:nodes=300,degree=8,communities=4,features=16", "--epochs", "30")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str, *words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, *words])
    with torch.random.fork_rng():
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_from_pyg(monkeypatch, capsys):
    run("03_from_pyg.py", *SMALL, monkeypatch=monkeypatch)
    scores = dict(re.findall(r"(\w+): test accuracy ([\d.]+)", capsys.readouterr().out))
    assert set(scores) == {"ReLU", "MaxK"}
    assert min(map(float, scores.values())) > 0.7  # chance is 0.25


def test_from_dgl(monkeypatch, capsys):
    def graph(ends, num_nodes):
        return StandInDGLGraph(torch.stack(ends), (num_nodes, num_nodes))

    monkeypatch.setitem(sys.modules, "dgl", SimpleNamespace(graph=graph))
    run("04_from_dgl.py", *SMALL, monkeypatch=monkeypatch)
    (score,) = re.findall(r"test accuracy ([\d.]+)", capsys.readouterr().out)
    assert float(score) > 0.7


def test_without_dgl_the_example_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)
    with pytest.raises(SystemExit, match="needs DGL, which does not import here"):
        run("04_from_dgl.py", monkeypatch=monkeypatch)
