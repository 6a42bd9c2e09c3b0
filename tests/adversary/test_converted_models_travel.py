"""A converted model copies, pickles, is saved and goes to another process as any module does."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import maxk

pyg = pytest.importorskip("torch_geometric.nn")

EDGES = torch.tensor([[0, 1, 2, 3, 1, 0], [1, 2, 0, 0, 3, 2]])


class Functions(nn.Module):
    """Activations and dropout as functions, tied weights, attributes, an unused child."""

    def __init__(self):
        super().__init__()
        self.conv1 = pyg.SAGEConv(6, 8)
        self.conv2 = pyg.SAGEConv(8, 8)
        self.conv3 = pyg.GCNConv(8, 3)
        self.conv2.lin_l.weight = self.conv2.lin_r.weight
        self.unused = nn.Linear(2, 2)
        self.again = self.unused
        self.scale = nn.Parameter(torch.ones(1))
        self.same_scale = self.scale
        self.register_buffer("shift", torch.zeros(1), persistent=False)
        self.note = "kept"

    def forward(self, x, edge_index):
        h = F.relu(self.conv1(x, edge_index))
        h = F.dropout(h, p=0.3, training=self.training)
        skip = h
        h = F.relu(self.conv2(h, edge_index)) + skip
        h = F.dropout(F.relu(h), 0.2, self.training)
        return self.conv3(h, edge_index) * self.scale + self.shift


class Modules(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = pyg.GINConv(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8)))
        self.conv2 = pyg.SAGEConv(8, 3)
        self.act, self.drop = nn.ReLU(), nn.Dropout(0.5)

    def forward(self, x, edge_index):
        return self.conv2(self.drop(self.act(self.conv1(x, edge_index))), edge_index)


MODELS = {
    "functions": Functions,
    "modules": Modules,
    "GraphSAGE of PyG": lambda: pyg.models.GraphSAGE(6, 8, 3, 3, dropout=0.4),
    "Sequential of PyG": lambda: pyg.Sequential("x, edge_index", [
        (pyg.SAGEConv(6, 8), "x, edge_index -> x"), nn.ReLU(),
        (pyg.SAGEConv(8, 3), "x, edge_index -> x"),
    ]),
}  # fmt: skip


def through_torch(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS = {
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": through_torch,
    "deepcopy": copy.deepcopy,
    "twice": lambda model: copy.deepcopy(through_torch(pickle.loads(pickle.dumps(model)))),
}  # fmt: skip


def outputs(model):
    """Logits in evaluation and in training, and the gradients."""
    x = torch.linspace(-1, 1, 24).reshape(4, 6)
    evaluation = model.eval()(x, EDGES)
    torch.manual_seed(0)
    training = model.train()(x, EDGES)
    model.zero_grad()
    training.sin().sum().backward()
    return [evaluation, training, *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_the_same(name, way):
    torch.manual_seed(1)
    model = maxk.convert(MODELS[name](), k=3)
    want = outputs(model)
    travelled = WAYS[way](model)
    assert type(travelled).__name__ == type(model).__name__
    assert travelled.state_dict().keys() == model.state_dict().keys()
    for got, expected in zip(outputs(travelled), want, strict=True):
        assert torch.equal(got, expected)
    report = maxk.conversion_report
    assert report(travelled) == report(model)
    assert WAYS[way](model.eval()).training is False
    # They share nothing.
    with torch.no_grad():
        for parameter in travelled.parameters():
            parameter.zero_()
    for got, expected in zip(outputs(model), want, strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_tied_stays_tied_and_what_is_unused_stays(way):
    model = WAYS[way](maxk.convert(Functions(), k=3))
    assert model.conv2.lin_l.weight is model.conv2.lin_r.weight
    assert model.scale is model.same_scale
    assert model.unused is model.again
    assert model.note == "kept"
    assert model.state_dict().keys() == Functions().state_dict().keys()
    assert "shift" in dict(model.named_buffers())


def test_hooks_travel():
    model = maxk.convert(Modules(), k=3)
    called = []
    model.conv2.register_forward_hook(lambda *given: called.append(1))
    copy.deepcopy(model)(torch.randn(4, 6), EDGES)
    assert called == [1]


def in_another_process(model, x, results):
    results.put(model(x, EDGES).tolist())


def test_a_spawned_process_computes_the_same():
    model = maxk.convert(Functions(), k=3).eval()
    x = torch.linspace(-1, 1, 24).reshape(4, 6)
    context = torch.multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    process = context.Process(target=in_another_process, args=(model, x, results))
    process.start()
    got = results.get()
    process.join()
    assert got == model(x, EDGES).tolist()
