"""Converted models equal the dense-mask reference, run SpGEMM, and refuse what they cannot be."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import maxk
from graphs import random_graph
from maxk.ops import dispatch

pyg = pytest.importorskip("torch_geometric.nn")

N, WIDTH, K = 25, 16, 5
EDGES = random_graph(N, N, 150, weighted=False).edge_index()
EDGES = EDGES[:, EDGES[0] != EDGES[1]]  # PyG merges parallel self-loops


def features(width: int = 6) -> torch.Tensor:
    return torch.randn(N, width, dtype=torch.float64, requires_grad=True)


class Functional(nn.Module):
    """As PyG's examples are written."""

    def __init__(self, conv=pyg.SAGEConv, dropout=0.0, modules=pyg):
        super().__init__()
        self.convs = nn.ModuleList([conv(6, WIDTH), conv(WIDTH, WIDTH), conv(WIDTH, 3)])
        self.bns = nn.ModuleList([nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH)])
        self.dropout, self.note = dropout, "kept"
        self.unused = nn.Linear(2, 2)

    def activate(self, x):
        return F.relu(x)

    def forward(self, x, edge_index):
        for conv, bn in zip(self.convs[:-1], self.bns, strict=True):
            x = self.activate(bn(conv(x, edge_index)))
            x = F.dropout(x, p=self.dropout, training=self.training)
        return self.convs[-1](x, edge_index).log_softmax(dim=-1)


class Reference(Functional):
    def activate(self, x):
        return maxk.nn.MaxK(K)(x)


class Modular(nn.Module):
    """Activation and dropout as modules; a residual sum reads the activation too."""

    def __init__(self, act=None):
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(6, WIDTH), pyg.GCNConv(WIDTH, WIDTH)
        self.act = act or nn.ReLU()
        self.drop = nn.Dropout(0.0)
        self.lin = nn.Linear(WIDTH, 3)

    def forward(self, data):
        h = self.act(self.conv1(data.x, data.edge_index))
        y = self.conv2(self.drop(h), data.edge_index, edge_weight=None) + h
        return self.lin(y.relu())


class ModularReference(Modular):
    def forward(self, data):
        h = maxk.nn.MaxK(K)(self.conv1(data.x, data.edge_index))
        y = self.conv2(h, data.edge_index) + h
        return self.lin(y.relu())


def call(model: nn.Module, x: torch.Tensor, edge_index: torch.Tensor = EDGES) -> torch.Tensor:
    if isinstance(model, Modular) or type(model).__name__.startswith("Modular"):
        return model(SimpleNamespace(x=x, edge_index=edge_index))
    return model(x, edge_index)


def compare(ours: nn.Module, reference: nn.Module, spgemm: int, monkeypatch) -> None:
    """Outputs and every gradient agree; only ``ours`` runs SpGEMM and SSpMM, so many times."""
    assert set(ours.state_dict()) == set(reference.state_dict())
    results = []
    x = torch.randn(N, 6, dtype=torch.float64)
    run = dispatch.call
    for model in (ours, reference):
        ran = []
        monkeypatch.setattr(dispatch, "call", lambda op, f, *a, ran=ran: (
            ran.append(f), run(op, f, *a))[1])  # fmt: skip
        leaf = x.clone().requires_grad_()
        y = call(model, leaf)
        y.sin().sum().backward()
        results.append((y, leaf.grad, {n: p.grad for n, p in model.named_parameters()}))
        for op in ("spgemm", "sspmm"):
            assert ran.count(op) == (spgemm if model is ours else 0)
    (y, dx, grads), (want_y, want_dx, want_grads) = results
    torch.testing.assert_close(y, want_y, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(dx, want_dx, rtol=1e-8, atol=1e-10)
    for name, want in want_grads.items():
        if want is None:
            assert grads[name] is None, name
        else:
            torch.testing.assert_close(grads[name], want, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", [None, "batch_norm", "layer_norm"])
@pytest.mark.parametrize("kind", ["GraphSAGE", "GCN", "GIN"])
def test_basic_gnn_equals_a_dense_mask(kind, norm, training, monkeypatch):
    torch.manual_seed(0)
    model = getattr(pyg, kind)(6, WIDTH, 3, 4, norm=norm).double().train(training)
    reference = copy.deepcopy(model)
    reference.act = maxk.nn.MaxK(K)
    ours = maxk.convert(model, K)
    assert type(ours) is type(model)
    assert ours.training == training
    compare(ours, reference, 2, monkeypatch)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", [Functional, Modular])
def test_hand_written_model_equals_a_dense_mask(kind, training, monkeypatch):
    torch.manual_seed(0)
    model = kind().double().train(training)
    reference = {Functional: Reference, Modular: ModularReference}[kind]().double()
    reference.load_state_dict(model.state_dict())
    ours = maxk.convert(model, K)
    assert ours.training == training
    compare(ours, reference.train(training), 2 if kind is Functional else 1, monkeypatch)


def test_layers_of_both_kinds_and_a_nested_model():
    class Net(nn.Module):
        def __init__(self, modules):
            super().__init__()
            self.conv1, self.conv2 = modules.SAGEConv(6, WIDTH), modules.SAGEConv(WIDTH, WIDTH)
            self.encoder = pyg.GCN(WIDTH, WIDTH, 2, 3)

        def forward(self, x, edge_index):
            x = torch.relu(self.conv1(x, edge_index=edge_index))
            return self.encoder(self.conv2(x, edge_index=edge_index), edge_index)

    class Ours(Net):
        def forward(self, x, edge_index):
            x = torch.relu(self.conv1(x, edge_index))
            return self.encoder(self.conv2(x, edge_index), edge_index)

    torch.manual_seed(0)
    theirs = Net(pyg).double()
    ours = Ours(maxk.nn).double()
    ours.load_state_dict(theirs.state_dict())
    x = features()
    got = [maxk.convert(model, K)(x, EDGES) for model in (theirs, ours)]
    torch.testing.assert_close(*got)
    report = str(maxk.conversion_report(maxk.convert(theirs, K)))
    assert "encoder.convs.1  GCNConv   ReLU -> MaxK(k=5) -> CBSR" in report
    assert "conv2            SAGEConv  ReLU -> MaxK(k=5) -> CBSR" in report


@pytest.mark.parametrize("wrap", ["Sequential", "pyg.Sequential", "blocks"])
def test_containers_are_followed(wrap, monkeypatch):
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self, width_in, act):
            super().__init__()
            self.conv = pyg.SAGEConv(width_in, WIDTH)
            self.post = nn.Sequential(nn.BatchNorm1d(WIDTH), act, nn.Dropout(0.0))

        def forward(self, x, edge_index):
            return self.post(self.conv(x, edge_index))

    class Stack(nn.Module):
        def __init__(self, blocks):
            super().__init__()
            self.blocks = blocks

        def forward(self, x, edge_index):
            for block in self.blocks:
                x = block(x, edge_index)
            return x

    def build(act):
        torch.manual_seed(0)
        if wrap == "pyg.Sequential":
            return pyg.Sequential("x, edge_index", [
                (pyg.SAGEConv(6, WIDTH), "x, edge_index -> x"), act, nn.Dropout(0.0),
                (pyg.GCNConv(WIDTH, WIDTH), "x, edge_index -> x"), act, nn.Linear(WIDTH, 3),
            ]).double()  # fmt: skip
        blocks = [Block(6, act), Block(WIDTH, act)]
        last = pyg.GCNConv(WIDTH, 3)
        return Stack(nn.ModuleList([*blocks, last])).double()

    ours, reference = maxk.convert(build(nn.ReLU()), K), build(maxk.nn.MaxK(K))
    if wrap == "pyg.Sequential":  # its last activation stays, before a linear layer
        reference.module_4 = nn.ReLU()
    compare(ours, reference, 1 if wrap == "pyg.Sequential" else 2, monkeypatch)


def test_maxk_as_act_of_pyg_and_converted():
    torch.manual_seed(0)
    model = pyg.GraphSAGE(6, WIDTH, 3, 4, act=maxk.nn.MaxK(K)).double()
    ours = maxk.convert(model, k=2)
    x = features()
    torch.testing.assert_close(ours(x, EDGES), model(x, EDGES))
    assert maxk.conversion_report(ours).converted[1].k == K


def test_weights_are_copied_and_the_model_stays():
    model = Functional()
    model.convs[1].lin_l.weight.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ours = maxk.convert(model, K)
    assert isinstance(model.convs[0], pyg.SAGEConv)
    assert not hasattr(model, "maxk_0")
    assert not ours.convs[1].lin_l.weight.requires_grad
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    model.load_state_dict(ours.state_dict())
    assert (ours.note, ours.unused.in_features) == ("kept", 2)


def test_dropout_follows_the_mode_and_drops_stored_values(monkeypatch):
    seen = []
    inner = maxk.nn.SAGEConv.forward
    monkeypatch.setattr(
        maxk.nn.SAGEConv,
        "forward",
        lambda self, x, graph: (seen.append(x), inner(self, x, graph))[1],
    )
    for model in (Functional(dropout=0.5), pyg.GraphSAGE(6, WIDTH, 3, 4, dropout=0.5)):
        ours = maxk.convert(model.eval(), WIDTH)
        assert not ours.training
        x = torch.rand(N, 6)
        for mode, dropped in ((True, True), (False, False)):
            seen.clear()
            ours.train(mode)(x, EDGES)
            assert isinstance(seen[0], torch.Tensor)
            assert all(isinstance(h, maxk.CBSR) for h in seen[1:])
            zeros = (seen[1].values == 0).float().mean().item()
            assert (0.3 < zeros < 0.7) == dropped
        torch.testing.assert_close(ours(x, EDGES), ours(x, EDGES))


def test_always_on_dropout_stays_on():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = pyg.SAGEConv(6, WIDTH), pyg.SAGEConv(WIDTH, 3)

        def forward(self, x, edge_index):
            return self.conv2(F.dropout(self.conv1(x, edge_index).relu(), 0.5), edge_index)

    ours = maxk.convert(Net().eval(), K)
    x = torch.rand(N, 6)
    assert not torch.equal(ours(x, EDGES), ours(x, EDGES))


def test_edge_weight_reaches_the_layer():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = pyg.GCNConv(6, WIDTH), pyg.GCNConv(WIDTH, 3)

        def forward(self, x, edge_index, edge_weight=None):
            x = maxk_or_relu(self.conv1(x, edge_index, edge_weight))
            return self.conv2(x, edge_index, edge_weight)

    maxk_or_relu = F.relu
    model = Net().double()
    ours = maxk.convert(model, K)
    maxk_or_relu = maxk.nn.MaxK(K)  # for the original from here on
    x = features()
    results = []
    for net in (ours, model):
        w = torch.linspace(0.5, 2, EDGES.shape[1], dtype=torch.float64, requires_grad=True)
        y = net(x, EDGES, w)
        y.sin().sum().backward()
        results.append((y, w.grad))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(ours(x, EDGES), model(x, EDGES))


def test_a_skipped_layer_gets_the_dense_form():
    model = Functional(conv=pyg.GCNConv).double()
    ours = maxk.convert(model, K, skip=["convs.2"])
    assert isinstance(ours.convs[2], pyg.GCNConv)
    assert maxk.conversion_report(ours).converted[-1].name == "convs.1"

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = pyg.GCNConv(6, WIDTH), pyg.GCNConv(WIDTH, 3)
            self.gat = pyg.GATConv(WIDTH, 3)

        def forward(self, x, edge_index):
            h = self.conv1(x, edge_index).relu()
            return self.conv2(h, edge_index) + self.gat(h, edge_index)

    with pytest.raises(ValueError, match=r"gat \(GATConv\) cannot be converted.*skip=\['gat'\]"):
        maxk.convert(Mixed(), K)
    ours = maxk.convert(Mixed(), K, skip=["gat"])
    assert ours(torch.randn(N, 6), EDGES).shape == (N, 3)
    assert "gat: skipped" in str(maxk.conversion_report(ours))


def test_force_replaces_another_activation():
    model = pyg.GraphSAGE(6, WIDTH, 2, 4, act="elu")
    with pytest.raises(ValueError, match=r"is ELU, not ReLU; pass force=True"):
        maxk.convert(model, K)
    assert isinstance(maxk.convert(model, K, force=True).act, maxk.nn.MaxK)
    written = Modular(act=nn.ELU())
    with pytest.raises(ValueError, match=r"before conv2 is ELU.*skip=\['conv2'\]"):
        maxk.convert(written, K)
    assert maxk.conversion_report(maxk.convert(written, K, force=True)).converted[1].k == K


def test_copied_and_saved(tmp_path):
    ours = maxk.convert(Functional(), K).eval()
    x = torch.randn(N, 6)
    torch.save(ours, tmp_path / "model.pt")
    again = torch.load(tmp_path / "model.pt", weights_only=False)
    assert torch.equal(again(x, EDGES), ours(x, EDGES))
    assert torch.equal(copy.deepcopy(ours)(x, EDGES), ours(x, EDGES))
    assert str(maxk.conversion_report(again)) == str(maxk.conversion_report(ours))


class _Branching(Functional):
    def forward(self, x, edge_index, edge_weight=None):
        if edge_weight is not None:
            x = x * 2
        return super().forward(x, edge_index)


class _Asking(Functional):
    def forward(self, x, edge_index):
        if isinstance(x, tuple):
            x = x[0]
        return super().forward(x, edge_index)


class _Moody(Functional):
    def forward(self, x, edge_index):
        return super().forward(x * 2 if self.training else x, edge_index)


class _Sized(Functional):
    def forward(self, x, edge_index):
        return super().forward(x, edge_index) if x.size(0) > 3 else x


class _InPlace(Functional):
    def forward(self, x, edge_index):
        h = self.convs[0](x, edge_index)
        return self.convs[1](F.relu(h, inplace=True), edge_index) + h


class _NoActivation(Functional):
    def activate(self, x):
        return x


class _Subclass(pyg.SAGEConv):
    def message(self, x_j):
        return x_j * 2


def _hooked():
    model = Functional()
    model.convs[1].register_forward_hook(lambda *a: None)
    return model


@pytest.mark.parametrize(("make", "text"), [
    (lambda: pyg.GAT(6, WIDTH, 2, 3), r"convs.0 \(GATConv\) cannot be converted: it is none of"),
    (lambda: pyg.GraphSAGE(6, WIDTH, 2, 3, jk="cat"), "jk='cat', which reads every activation"),
    (lambda: pyg.GraphSAGE(6, WIDTH, 2, 3, aggr="max"), "aggr='max', not 'mean' or 'sum'"),
    (lambda: pyg.GraphSAGE(6, WIDTH, 2, 3, act=None), "is nothing, not ReLU; use act='relu'"),
    (lambda: pyg.GraphSAGE(6, WIDTH, 1, 3), "no activation directly before a convolution"),
    (lambda: pyg.GraphSAGE(-1, WIDTH, 2, 3), "not initialized yet; call the model once"),
    (lambda: pyg.GraphSAGE(6, WIDTH, 2, 3, act_first=True, norm="batch_norm"), "act_first=True"),
    (lambda: pyg.GraphSAGE(6, 4, 2, 3), r"k must lie in \[1, 4\]"),
    (lambda: pyg.GCN(6, WIDTH, 2, 3, improved=True), "has improved=True"),
    (lambda: pyg.GCN(6, WIDTH, 2, 3, flow="target_to_source"), "flow='target_to_source'"),
    (lambda: Functional(conv=_Subclass), r"convs.0 \(_Subclass\) cannot be converted"),
    (_hooked, "has hooks, which the conversion would lose"),
    (lambda: nn.Linear(2, 2), "no convolution at all"),
    (_NoActivation, "no activation directly before"),
    (_Branching, "does other things without its optional arguments than with them"),
    (_Asking, "asks for the class of 'x'"),
    (_Moody, r"does other things in eval\(\) than in train\(\)"),
    (_Sized, "cannot be recorded by torch.fx"),
    (_InPlace, "changes its input in place"),
])  # fmt: skip
def test_refusals(make, text):
    model = make()
    with pytest.raises(ValueError, match=text):
        maxk.convert(model, K)


@pytest.mark.parametrize(("arguments", "error", "text"), [
    ((Functional(), 0), ValueError, "k must lie in"),
    ((Functional(), 2.0), TypeError, "k must be an int"),
    ((Functional(), WIDTH + 1), ValueError, r"k must lie in \[1, 16\]"),
    (("model", 2), TypeError, "model must be a torch.nn.Module"),
])  # fmt: skip
def test_bad_arguments(arguments, error, text):
    with pytest.raises(error, match=text):
        maxk.convert(*arguments)


def test_skip_must_name_a_convolution():
    with pytest.raises(ValueError, match=r"skip names 'conv9', but the convolutions are convs.0"):
        maxk.convert(Functional(), K, skip=["conv9"])
    with pytest.raises(ValueError, match="one activation serves all layers of GCN"):
        maxk.convert(pyg.GCN(6, WIDTH, 2, 3), K, skip=["convs.1"])


def test_isinstance_is_put_back():
    before = set(globals())
    with pytest.raises(ValueError, match="class of 'x'"):
        maxk.convert(_Asking(), K)
    assert set(globals()) == before


def test_report_of_a_plain_model_is_refused():
    with pytest.raises(ValueError, match=r"does not come from maxk.convert"):
        maxk.conversion_report(Functional())
