"""DGL's calling order, against the definitions, and against DGL where it imports."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import maxk
from maxk.graph import cache
from maxk.interop import dgl
from maxk.interop.dgl.graph import graph_of
from standins import StandInDGLGraph

N, D = 9, 6
g = torch.Generator().manual_seed(0)
EDGES = torch.stack(
    [torch.randint(0, N, (30,), generator=g), torch.randint(0, 7, (30,), generator=g)]
)
WEIGHT = torch.rand(30, generator=g, dtype=torch.float64) + 0.5


@pytest.fixture
def graph():
    return StandInDGLGraph(EDGES, (N, N))


def adjacency(weight=None, counts=(N, N)) -> torch.Tensor:
    matrix = torch.zeros(counts[1], counts[0], dtype=torch.float64)
    w = torch.ones(EDGES.shape[1], dtype=torch.float64) if weight is None else weight
    return matrix.index_put((EDGES[1], EDGES[0]), w, accumulate=True)


def degrees(row: int) -> torch.Tensor:
    return torch.bincount(EDGES[row], minlength=N).clamp(min=1).double()


def sage(conv, h, a):
    if conv.aggregator_type == "mean":
        y = conv.fc_neigh(a @ h / degrees(1)[:, None]) + conv.fc_self(h)
    else:
        degree = torch.bincount(EDGES[1], minlength=N)[:, None]
        y = conv.fc_neigh((a @ h + h) / (degree + 1)) + (0 if conv.bias is None else conv.bias)
    y = y if conv.activation is None else conv.activation(y)
    return y if conv.norm is None else conv.norm(y)


def graph_conv(conv, h, a):
    left = {"both": degrees(0) ** -0.5, "left": 1 / degrees(0)}.get(
        conv.norm, torch.ones(N).double()
    )
    right = {"both": degrees(1) ** -0.5, "right": 1 / degrees(1)}.get(
        conv.norm, torch.ones(N).double()
    )
    y = right[:, None] * (a @ (left[:, None] * h))
    y = y if conv.weight is None else y @ conv.weight
    return y if conv.bias is None else y + conv.bias


def gin(conv, h, a):
    a = a / degrees(1)[:, None] if conv.aggregator_type == "mean" else a
    y = (1 + conv.eps) * h + a @ h
    return y if conv.apply_func is None else conv.apply_func(y)


CASES = {
    "SAGEConv mean": (lambda m: m.SAGEConv(D, 4, "mean"), sage),
    "SAGEConv mean wide": (lambda m: m.SAGEConv(D, 8, "mean", bias=False), sage),
    "SAGEConv gcn": (lambda m: m.SAGEConv(D, 4, "gcn", activation=torch.tanh), sage),
    "SAGEConv gcn no bias": (lambda m: m.SAGEConv(D, 4, "gcn", bias=False), sage),
    **{
        f"GraphConv {norm}": (lambda m, norm=norm: m.GraphConv(
            D, 4, norm, allow_zero_in_degree=True), graph_conv)
        for norm in ("both", "right", "left", "none")
    },
    "GraphConv wide": (lambda m: m.GraphConv(D, 8, allow_zero_in_degree=True), graph_conv),
    "GraphConv no weight": (
        lambda m: m.GraphConv(D, D, weight=False, bias=False, allow_zero_in_degree=True),
        graph_conv,
    ),
    "GINConv": (lambda m: m.GINConv(nn.Linear(D, 4), "sum", 0.3), gin),
    "GINConv mean": (lambda m: m.GINConv(None, "mean", learn_eps=True), gin),
}  # fmt: skip


def results(call, x, parameters):
    leaf, weight = x.clone().requires_grad_(), WEIGHT.clone().requires_grad_()
    y = call(leaf, weight)
    y.sin().sum().backward()
    grads = [p.grad.clone() for p in parameters]
    for p in parameters:
        p.grad = None
    return [y, leaf.grad, weight.grad, *grads]


@pytest.mark.parametrize("k", [None, 3])
@pytest.mark.parametrize("name", CASES)
def test_layers_follow_their_definitions(name, k, graph):
    torch.manual_seed(0)
    make, formula = CASES[name]
    conv = make(dgl).double()
    x = torch.randn(N, D, dtype=torch.float64)

    def features(leaf):
        return leaf if k is None else maxk.maxk(leaf, k)

    def dense(leaf):
        return leaf if k is None else maxk.maxk(leaf, k).to_dense()

    parameters = list(conv.parameters())
    got = results(lambda leaf, w: conv(graph, features(leaf), edge_weight=w), x, parameters)
    want = results(lambda leaf, w: formula(conv, dense(leaf), adjacency(w)), x, parameters)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
    # Without weights, and on our own Graph.
    want = formula(conv, dense(x), adjacency())
    torch.testing.assert_close(conv(graph, features(x)), want)
    torch.testing.assert_close(conv(maxk.to_graph(graph), features(x)), want)


@pytest.mark.parametrize("name", CASES)
def test_layers_equal_those_of_dgl(name):
    try:
        import dgl as theirs
        import dgl.nn as theirs_nn
    except Exception as error:  # its wheels fail in many ways beside a newer torch
        pytest.skip(f"DGL does not import: {error}")
    torch.manual_seed(0)
    make, _ = CASES[name]
    real = theirs.graph((EDGES[0], EDGES[1]), num_nodes=N)
    ours, conv = make(dgl).double(), make(theirs_nn).double()
    ours.load_state_dict(conv.state_dict())
    x = torch.randn(N, D, dtype=torch.float64)
    got = results(lambda leaf, w: ours(real, leaf, edge_weight=w), x, list(ours.parameters()))
    want = results(lambda leaf, w: conv(real, leaf, edge_weight=w), x, list(conv.parameters()))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)
    back = maxk.interop.to_dgl(maxk.to_graph(real))
    assert torch.equal(torch.stack(back.edges(order="eid")), EDGES)


def test_block_of_a_sampler_takes_its_first_rows():
    block = StandInDGLGraph(EDGES, (N, 7))
    x = torch.randn(N, D, dtype=torch.float64)
    mean = adjacency(counts=(N, 7)) / degrees(1)[:7, None]
    conv = dgl.SAGEConv(D, 4, "mean").double()
    for features, dense in ((x, x), (h := maxk.maxk(x, 2), h.to_dense())):
        want = conv.fc_neigh(mean @ dense) + conv.fc_self(dense[:7])
        torch.testing.assert_close(conv(block, features), want)
    torch.testing.assert_close(conv(block, (x, x[:7])), conv(block, x))


def test_graph_is_converted_once_and_changes_are_seen(graph):
    first = graph_of(graph)
    assert graph_of(graph) is first
    graph.edges_ = EDGES[:, 1:]
    assert graph_of(graph).num_edges == 29
    key = id(graph)
    assert key in cache._entries
    del graph.edges_


def test_feature_dropout():
    graph = StandInDGLGraph(EDGES, (N, N))
    conv = dgl.SAGEConv(D, 4, "mean", feat_drop=0.5)
    x = torch.randn(N, D)
    assert not torch.equal(conv(graph, x), conv(graph, x))
    assert torch.equal(conv.eval()(graph, x), conv(graph, x))


def test_weight_given_in_the_call(graph):
    x, weight = torch.randn(N, D), torch.randn(D, 4)
    own = dgl.GraphConv(D, 4, bias=False)
    own.weight.data.copy_(weight)
    given = dgl.GraphConv(D, 4, weight=False, bias=False)
    torch.testing.assert_close(given(graph, x, weight), own(graph, x))
    with pytest.raises(ValueError, match="weight=False"):
        own(graph, x, weight)


@pytest.mark.parametrize(("call", "error", "text"), [
    (lambda g: dgl.SAGEConv(D, 4, "lstm"), ValueError, "aggregator_type must be 'mean' or 'gcn'"),
    (lambda g: dgl.GINConv(None, "max"), ValueError, "aggregator_type must be 'sum' or 'mean'"),
    (lambda g: dgl.GraphConv(D, 4, norm="all"), ValueError, "norm must be"),
    (lambda g: dgl.GINConv()(EDGES, torch.ones(N, D)), TypeError, "must be a DGLGraph"),
    (lambda g: dgl.GraphConv(D, 4, allow_zero_in_degree=False)(g, torch.ones(N, D)), ValueError,
     "2 nodes have no in-edges"),
])  # fmt: skip
def test_bad_input(call, error, text, graph):
    with pytest.raises(error, match=text):
        call(graph)
