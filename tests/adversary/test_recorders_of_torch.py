"""torch.jit.trace, ONNX and exports of models with tied weights: right, or one sentence."""

from __future__ import annotations

import importlib.util
import io

import pytest
import torch
from torch import nn

import maxk

pyg = pytest.importorskip("torch_geometric.nn")

EDGES = torch.tensor([[0, 1, 2, 3, 1, 0], [1, 2, 0, 0, 3, 2]])
GRAPH = maxk.Graph.from_edge_index(EDGES, 4)
X = torch.linspace(-1, 1, 24).reshape(4, 6)


class OnGraph(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x, GRAPH)


MODULES = {
    "SAGEConv": lambda: OnGraph(maxk.nn.SAGEConv(6, 3)),
    "GCNConv": lambda: OnGraph(maxk.nn.GCNConv(6, 3)),
    "GINConv": lambda: OnGraph(maxk.nn.GINConv(nn.Linear(6, 3))),
    "MaxK": lambda: maxk.nn.MaxK(2),
    "GraphSAGE": lambda: OnGraph(maxk.nn.GraphSAGE(6, 8, 2, 3, k=2)),
    "GCN": lambda: OnGraph(maxk.nn.GCN(6, 8, 2, 3, k=2)),
    "GIN": lambda: OnGraph(maxk.nn.GIN(6, 8, 2, 3, k=2)),
    "SAGEConv of a converted model": lambda: OnGraph(
        maxk.convert(pyg.models.GraphSAGE(6, 8, 2, 3), k=2)
    ),
}
RECORDERS = {
    "torch.jit.trace": lambda module: torch.jit.trace(module, (X,)),
    "torch.onnx.export": lambda module: torch.onnx.export(
        module, (X,), io.BytesIO(), dynamo=False
    ),
}  # fmt: skip


@pytest.mark.parametrize("recorder", RECORDERS)
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.filterwarnings("ignore")
def test_one_sentence_says_what_to_use(name, recorder):
    kind = name.split()[0]
    text = rf"{recorder} cannot record {kind}, .*export_torch.*to_pyg_model"
    with pytest.raises(RuntimeError, match=text):
        RECORDERS[recorder](MODULES[name]().eval())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("network", ["GraphSAGE", "GCN", "GIN"])
def test_what_the_sentence_names_works(network):
    model = getattr(maxk.nn, network)(6, 8, 2, 3, k=2).eval()
    traced = torch.jit.trace(maxk.interop.to_pyg_model(model), (X, EDGES))
    program = maxk.interop.export_torch(model, X, GRAPH)
    other = X.flip(0)
    want = model(other, GRAPH)
    torch.testing.assert_close(program.module()(other), want)
    torch.testing.assert_close(traced(other, EDGES), want)
    # The edges are an input of the trace, not a part of it.
    reverse = maxk.Graph.from_edge_index(EDGES.flip(0), 4)
    torch.testing.assert_close(traced(other, EDGES.flip(0)), model(other, reverse))


def tied():
    model = maxk.nn.GraphSAGE(6, 8, 2, 3, k=2).eval()
    model.layers[1].lin_l.weight = model.layers[0].lin_l.weight
    model.layers[1].lin_r = model.layers[0].lin_r
    return model


def test_tied_weights_are_exported(tmp_path):
    model = tied()
    want = model(X, GRAPH)
    torch.testing.assert_close(maxk.interop.to_pyg_model(model)(X, EDGES), want)
    weights, code = maxk.interop.export_pyg(model, tmp_path / "model.safetensors")
    spec = importlib.util.spec_from_file_location("exported_tied", code)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.testing.assert_close(module.load(weights)(X, EDGES), want)
    torch.testing.assert_close(maxk.interop.export_torch(model, X, GRAPH).module()(X), want)


@pytest.mark.parametrize("k", range(1, 8))
def test_the_exported_maxk_is_ours_for_ties_and_nan(k):
    torch.manual_seed(0)
    x = torch.randn(50, 7).round()
    x[3, 2:5] = x[4] = float("nan")
    x[5, 1], x[6], x[6, 3] = float("inf"), -0.0, 0.0
    got = maxk.interop.exported._largest(x, k)
    torch.testing.assert_close(got, maxk.maxk(x, k).to_dense(), rtol=0, atol=0, equal_nan=True)
