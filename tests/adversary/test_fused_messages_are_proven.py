"""A message is fused only where its source proves it; everything else runs as PyG runs it."""

from __future__ import annotations

import copy
import functools
import pickle

import pytest
import torch
from torch import nn

import maxk
from maxk.ops import dispatch

pyg = pytest.importorskip("torch_geometric.nn")
EdgeIndex = pytest.importorskip("torch_geometric").EdgeIndex
FusedMessage = maxk.interop.FusedMessage

N, WIDTH = 6, 4
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 3, 4, 5, 0, 3, 1]])
WEIGHT = torch.linspace(-1.5, 2, EDGES.shape[1], dtype=torch.float64)


class Base(pyg.MessagePassing):
    """Layers below override one part of this one."""

    def __init__(self, aggr="sum", **settings):
        super().__init__(aggr=aggr, **settings)
        self.a = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.scale = 1.0

    def forward(self, x, edge_index, edge_weight=None):
        return self.propagate(edge_index, x=x, edge_weight=edge_weight)


class Learned(Base):
    def message(self, x_j):
        return self.a * x_j


class Scaled(Base):
    def message(self, x_j):
        return self.scale * x_j


class Rectified(Base):
    def message(self, x_j):
        return x_j.relu()


class Absolute(Base):
    def message(self, x_j, edge_weight):
        return edge_weight.abs().view(-1, 1) * x_j


class Mode(Base):
    def message(self, x_j):
        return 2 * x_j if self.training else x_j


class Twice(Base):
    def message(self, x_j, edge_weight):
        return edge_weight.view(-1, 1) * edge_weight.view(-1, 1) * x_j


class Square(Base):
    def message(self, x_j):
        return x_j * x_j


class Both(Base):
    def message(self, x_i, x_j):
        return x_j - x_i


class OwnAggregate(Base):
    def aggregate(self, inputs, index, dim_size=None):
        return 3 * super().aggregate(inputs, index, dim_size=dim_size)


class UpdateSources(Base):
    def update(self, aggr_out, x):
        return aggr_out + 2 * x


class UpdateIndex(Base):
    def update(self, aggr_out, index, x_j):
        return aggr_out + x_j.sum() + index.sum()


class Decorated(Base):
    def twice(message):
        @functools.wraps(message)
        def inner(self, x_j):
            return 2 * message(self, x_j)

        return inner

    @twice
    def message(self, x_j):
        return x_j


class Plain(Base):
    def message(self, x_j):
        return x_j


class Weighted(Base):
    def message(self, x_j, edge_weight):
        """With a docstring."""
        return x_j * edge_weight.unsqueeze(-1)


class Optional(Base):
    def message(self, x_j, edge_weight):
        if edge_weight is None:
            return x_j
        return edge_weight[:, None] * x_j


class OwnPropagate(Base):
    def propagate(self, edge_index, size=None, **arguments):
        return 5 * pyg.MessagePassing.propagate(self, edge_index, size=size, **arguments)


UNPROVEN = [
    Learned, Scaled, Rectified, Absolute, Mode, Twice, Square, Both, OwnAggregate, UpdateIndex,
    Decorated, OwnPropagate,
]  # fmt: skip
PROVEN = [Base, Plain, Weighted, Optional, UpdateSources]
FUSED = {
    theirs: type(f"Fused{theirs.__name__}", (FusedMessage, theirs), {"__module__": __name__})
    for theirs in UNPROVEN + PROVEN
}
globals().update({cls.__name__: cls for cls in FUSED.values()})  # pickles find them


@pytest.fixture
def ran(monkeypatch):
    """Names of the operations that ran."""
    names, run = [], dispatch.call
    monkeypatch.setattr(dispatch, "call", lambda op, f, *a: (names.append(f), run(op, f, *a))[1])
    return names


def features(positive=False):
    torch.manual_seed(0)
    x = torch.randn(N, WIDTH, dtype=torch.float64)
    return x.abs() if positive else x


def compare(ours, theirs, x, edges=EDGES, weight=WEIGHT):
    results = []
    for conv in (ours, theirs):
        leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        y = conv(leaves[0], edges, leaves[1])
        conv.zero_grad()
        y.sin().sum().backward()
        results.append([y, *(leaf.grad for leaf in leaves), conv.a.grad])
    for got, want in zip(*results, strict=True):
        if want is None:
            assert got is None
        else:
            torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("theirs", UNPROVEN + PROVEN)
def test_every_layer_computes_what_pyg_computes_at_any_time(theirs):
    ours, plain = FUSED[theirs](), theirs()
    # The first call sees rows and settings for which many messages look like x_j.
    compare(ours, plain, features(positive=True), weight=WEIGHT.abs().fill_(1))
    for conv in (ours, plain):
        conv.scale = 3.0
        with torch.no_grad():
            conv.a.fill_(0.5)
    compare(ours, plain, features())
    compare(ours.eval(), plain.eval(), features())
    compare(ours.train(), plain.train(), features())
    compare(pickle.loads(pickle.dumps(ours)), copy.deepcopy(plain), features())


@pytest.mark.parametrize("theirs", UNPROVEN + PROVEN)
def test_what_is_proven_is_fused_and_nothing_else(theirs, ran):
    conv = FUSED[theirs]()
    conv(features(), EDGES, WEIGHT)
    assert ("spmm" in ran) == (theirs in PROVEN)
    assert (conv.unfused_reason() is None) == (theirs in PROVEN)


def test_compressed_features_reach_layers_of_either_kind(ran):
    h = maxk.maxk(features(), 2)
    ran.clear()
    for theirs in (Plain, UpdateSources, Both, Learned):
        ours = FUSED[theirs]()
        want = theirs()(h.to_dense(), EDGES)
        torch.testing.assert_close(ours(h, EDGES), want)
        torch.testing.assert_close(ours(h, maxk.Graph.from_edge_index(EDGES, N)), want)
    assert ran.count("spgemm") == 4


def hooked(kind):
    def change(conv):
        conv.calls = []
        getattr(conv, f"register_{kind}")(lambda *given: conv.calls.append(kind))

    return change


def aggregation_hook(conv):
    conv.calls = []
    conv.aggr_module.register_forward_hook(lambda *given: conv.calls.append("aggr"))


def message_of_the_object(conv):
    conv.message = lambda x_j: 4 * x_j


CHANGES = {
    **{kind: hooked(kind) for kind in (
        "propagate_forward_pre_hook", "propagate_forward_hook", "message_forward_pre_hook",
        "message_forward_hook", "aggregate_forward_pre_hook", "aggregate_forward_hook",
    )},
    "hook on the aggregation": aggregation_hook,
    "message of the object": message_of_the_object,
    "decomposed_layers": lambda conv: setattr(conv, "decomposed_layers", 2),
    "aggr_module": lambda conv: setattr(conv, "aggr_module", pyg.MaxAggregation()),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_after_the_first_call_is_respected(change):
    ours, theirs = FUSED[Plain](), Plain()
    compare(ours, theirs, features())
    for conv in (ours, theirs):
        CHANGES[change](conv)
    assert ours.unfused_reason() is not None
    compare(ours, theirs, features())
    assert getattr(ours, "calls", []) == getattr(theirs, "calls", [])
    assert "hook" not in change or len(ours.calls) == 1


def test_an_explanation_masks_the_messages():
    conv, edges = FUSED[Plain](), torch.arange(EDGES.shape[1])
    conv(features(), EDGES)
    conv.explain = True
    conv._edge_mask = edges.double()
    masked = maxk.aggregate(EDGES, features(), "sum", edge_weight=edges.double().sigmoid())
    torch.testing.assert_close(conv(features(), EDGES), masked)


def test_a_hook_may_replace_the_messages():
    ours, theirs = FUSED[Plain](), Plain()
    for conv in (ours, theirs):
        conv.register_message_forward_hook(lambda module, inputs, output: 7 * output)
    compare(ours, theirs, features())


@pytest.mark.parametrize("settings", [
    {"flow": "target_to_source"}, {"aggr": "max"}, {"decomposed_layers": 2}, {"node_dim": 0},
    {"aggr": ["sum", "mean"]}, {"aggr": pyg.aggr.SoftmaxAggregation()},
], ids=str)  # fmt: skip
def test_every_setting_of_message_passing_means_what_it_means_there(settings):
    compare(FUSED[Plain](**settings), Plain(**copy.deepcopy(settings)), features())


def test_a_message_put_into_the_class_later_is_seen():
    class Late(FusedMessage, Base):
        def message(self, x_j):
            return x_j

    conv = Late()
    first = conv(features(), EDGES)
    Late.message = lambda self, x_j: 2 * x_j
    torch.testing.assert_close(conv(features(), EDGES), 2 * first)


def test_own_message_and_aggregate_is_called_for_a_matrix():
    class Theirs(Base):
        def message(self, x_j):
            return x_j

        def message_and_aggregate(self, adj_t, x):
            return 9 * (adj_t @ x)

    class Ours(FusedMessage, Theirs):
        pass

    matrix = torch.zeros(N, N, dtype=torch.float64)
    matrix[EDGES[1], EDGES[0]] = 1
    matrix = matrix.to_sparse_csr()
    torch.testing.assert_close(Ours()(features(), matrix), Theirs()(features(), matrix))
    torch.testing.assert_close(Ours()(features(), EDGES), Theirs()(features(), EDGES))


def test_hooks_of_edge_updates_fire():
    class Edges(FusedMessage, Base):
        def edge_update(self, x_j):
            return x_j.sum(-1)

        def forward(self, x, edge_index):
            return self.propagate(edge_index, x=x) + self.edge_updater(edge_index, x=x).sum()

    conv = Edges()
    called = []
    conv.register_edge_update_forward_hook(lambda *given: called.append(1))
    conv(features(), EDGES)
    assert called == [1]


def test_a_declaration_counts_until_the_message_is_overridden(ran):
    class Declared(FusedMessage, Base):
        message_is = "x_j"

        def message(self, x_j):
            return torch.clone(x_j)

    class Below(Declared):
        def message(self, x_j):
            return x_j.exp()

    Declared()(features(), EDGES)
    assert "spmm" in ran
    ran.clear()
    Below()(features(), EDGES)
    assert "spmm" not in ran
    assert "message_is" in Below().unfused_reason()


def test_propagate_of_a_subclass_may_call_the_fused_one(ran):
    class Doubling(FUSED[Plain]):
        def propagate(self, edge_index, size=None, **arguments):
            return 2 * super().propagate(edge_index, size=size, **arguments)

    torch.testing.assert_close(Doubling()(features(), EDGES), 2 * Plain()(features(), EDGES))
    assert "spmm" in ran


@pytest.mark.parametrize("form", ["float32 weights", "integer features", "weights of two axes"])
def test_inputs_that_only_pyg_takes_run_there(form):
    x, weight = features(), WEIGHT
    if form == "float32 weights":
        weight = WEIGHT.float()
    elif form == "integer features":
        x = x.long()
    else:
        weight = WEIGHT[:, None].expand(-1, 1)
    conv = FUSED[Optional]()
    try:
        want = Optional()(x, EDGES, weight)
    except Exception as error:
        with pytest.raises(type(error)):
            conv(x, EDGES, weight)
        return
    torch.testing.assert_close(conv(x, EDGES, weight), want)


def test_weights_that_are_missing_are_missed_as_in_pyg():
    with pytest.raises(AttributeError):
        Weighted()(features(), EDGES)
    with pytest.raises(AttributeError):
        FUSED[Weighted]()(features(), EDGES)
