"""An exported network gives the logits of the one that was trained, without this package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import maxk
from graphs import random_graph
from maxk.cli.main import main
from maxk.nn.nonlinearities import NONLINEARITIES

pytest.importorskip("torch_geometric")

N, D = 25, 12
GRAPH = random_graph(N, N, 120, weighted=True)
EDGES = GRAPH.edge_index()
KEEP = EDGES[0] != EDGES[1]  # PyG merges parallel self-loops
EDGES, WEIGHT = EDGES[:, KEEP], GRAPH.weight[KEEP]


def network(kind: str, **options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    arguments = dict(k=4, nonlinearity="maxk") | options
    model = getattr(maxk.nn, kind)(6, D, 2, 3, **arguments).double()
    for parameter in model.parameters():  # no parameter keeps a value that hides a mistake
        torch.nn.init.normal_(parameter, std=0.5)
    return model


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("norm", [None, "layer", "batch"])
@pytest.mark.parametrize("kind", ["GraphSAGE", "GCN", "GIN"])
def test_same_logits_and_gradients(kind, norm, residual, weighted):
    model = network(kind, norm=norm, residual=residual)
    theirs = maxk.interop.to_pyg_model(model)
    weight = WEIGHT if weighted else None
    x = torch.randn(N, 6, dtype=torch.float64)
    for mode in (True, False):  # batch norm learns its statistics in the first
        want = model.train(mode)(x, maxk.to_graph(EDGES, N, weight))
        got = theirs.train(mode)(x, EDGES, weight)
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)
    for logits in (got, want):
        logits.sin().sum().backward()
    for name, parameter in model.named_parameters():
        grad = theirs.get_parameter(name).grad
        torch.testing.assert_close(grad, parameter.grad, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
def test_every_nonlinearity(nonlinearity):
    model = network("GraphSAGE", nonlinearity=nonlinearity, groups=2, dropout=0.5).eval()
    x = torch.randn(N, 6, dtype=torch.float64)
    want = model(x, maxk.to_graph(EDGES, N))
    torch.testing.assert_close(maxk.interop.to_pyg_model(model)(x, EDGES), want)
    fixed = network("GraphSAGE", nonlinearity=nonlinearity, groups=2, threshold=0.3).eval()
    want = fixed(x, maxk.to_graph(EDGES, N))
    torch.testing.assert_close(maxk.interop.to_pyg_model(fixed)(x, EDGES), want)


def test_equal_entries_and_sparse_features():
    model = network("GraphSAGE").float().eval()
    with torch.no_grad():  # seven equal entries in every row before the first MaxK
        model.lin_in.weight[3:10], model.lin_in.bias[3:10] = 0.0, 5.0
    x = torch.zeros(N, 6)
    x[::2, 1] = 1.0
    want = model(x, maxk.to_graph(EDGES, N))
    theirs = maxk.interop.to_pyg_model(model)
    torch.testing.assert_close(theirs(x, EDGES), want)
    torch.testing.assert_close(theirs(x.to_sparse_csr(), EDGES), want)


def test_dropout_is_kept():
    theirs = maxk.interop.to_pyg_model(network("GIN", dropout=0.5))
    x = torch.randn(N, 6, dtype=torch.float64)
    assert theirs.training
    assert not torch.equal(theirs(x, EDGES), theirs(x, EDGES))


def test_the_file_runs_without_this_package(tmp_path):
    model = network("GraphSAGE").float().eval()
    _, code = maxk.interop.export_pyg(model, tmp_path / "mine.safetensors")
    assert code == tmp_path / "mine.py"
    x = torch.randn(N, 6)
    torch.save((x, EDGES), tmp_path / "input.pt")
    script = (
        "import sys, torch; sys.modules['maxk'] = None; from mine import load; "
        "x, edges = torch.load('input.pt'); model = load('mine.safetensors'); "
        "torch.save(model(x, edges).detach(), 'logits.pt')"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    want = model(x, maxk.to_graph(EDGES, N))
    torch.testing.assert_close(torch.load(tmp_path / "logits.pt"), want)


@pytest.mark.parametrize("kind", ["GraphSAGE", "GCN", "GIN"])
def test_torch_export(kind, tmp_path):
    model = network(kind).float().eval()
    graph = maxk.to_graph(EDGES, N)
    x = torch.randn(N, 6)
    program = maxk.interop.export_torch(model, x, graph)
    torch.export.save(program, tmp_path / "model.pt2")
    again = torch.export.load(tmp_path / "model.pt2").module()
    for features in (x, torch.randn(N, 6)):
        torch.testing.assert_close(again(features), model(features, graph))
    calls = [str(node.target) for node in program.graph.nodes]
    assert calls.count("maxk.aggregate.default") == 2
    with pytest.raises(TypeError, match="x must be dense"):
        maxk.interop.export_torch(model, x.to_sparse_csr(), graph)


def test_torch_export_of_a_converted_model():
    from torch_geometric.nn import GraphSAGE

    torch.manual_seed(0)
    model = maxk.convert(GraphSAGE(6, D, 2, 3), k=4).eval()
    graph, x = maxk.to_graph(EDGES, N), torch.randn(N, 6)
    program = maxk.interop.export_torch(model, x, graph)
    torch.testing.assert_close(program.module()(x), model(x, EDGES))


def test_refusals(tmp_path):
    with pytest.raises(TypeError, match=r"must be a maxk.nn.GraphSAGE, GCN or GIN, got Linear"):
        maxk.interop.to_pyg_model(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"must end in .safetensors"):
        maxk.interop.export_pyg(network("GCN"), tmp_path / "model.pt")


class TestCommand:
    @pytest.fixture
    def run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.chdir(tmp_path)
        data = "synthetic:nodes=80,degree=4,communities=3,features=6"
        words = ["--hidden", "8", "--k", "4", "--layers", "2", "--epochs", "2", "--device", "cpu"]
        assert main(["train", "--dataset", data, *words, "--out", "run", "--quiet"]) == 0
        assert main(["predict", "run", "--out", "want.npz", "--device", "cpu"]) == 0
        return "run"

    def test_both_forms_give_the_logits_of_predict(self, run, capsys):
        want = np.load("want.npz")["logits"]
        assert main(["export", run, "--to", "pyg", "--out", "net.safetensors"]) == 0
        shown = capsys.readouterr().out
        assert "from net import load" in shown
        from maxk.interop.exported import load
        from maxk.train.folder import open_run

        dataset = open_run(run, device="cpu").dataset
        data = maxk.interop.to_pyg(dataset.graph)
        with torch.no_grad():
            got = load("net.safetensors")(dataset.x.to_dense(), data.edge_index)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)
        assert main(["export", run, "--to", "torch"]) == 0
        program = torch.export.load("model.pt2").module()
        logits = program(dataset.x.to_dense()).detach()
        np.testing.assert_allclose(logits.numpy(), want, atol=1e-5)

    @pytest.mark.parametrize(("words", "text"), [
        (["--to", "onnx"], "--to must be pyg or torch, got 'onnx'"),
        (["--out", "model.pt"], "--out must end in .safetensors with --to pyg"),
        (["--out", "want.npz/model.safetensors"], "cannot write"),
    ])  # fmt: skip
    def test_bad_words(self, run, words, text, capsys):
        assert main(["export", run, *words]) == 2
        error = capsys.readouterr().err
        assert text in error
        assert error.count("\n") == 1

    def test_no_run(self, tmp_path, capsys):
        assert main(["export", str(tmp_path)]) == 2
        assert "is no run folder" in capsys.readouterr().err
