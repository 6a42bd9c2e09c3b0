"""Positional and keyword arguments, lazy widths and heterogeneous models, as in PyG."""

from __future__ import annotations

import copy
import inspect
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import maxk

pyg = pytest.importorskip("torch_geometric.nn")
EDGES = torch.tensor([[0, 1, 2, 3, 1, 0], [1, 2, 0, 0, 3, 2]])
LAYERS = ["SAGEConv", "GCNConv", "GINConv"]


def arguments(function):
    return [
        (p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()
    ]  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_signatures_are_those_of_pyg(name):
    ours, theirs = getattr(maxk.nn, name), getattr(pyg, name)
    assert arguments(ours.__init__) == arguments(theirs.__init__)
    assert arguments(ours.forward) == arguments(theirs.forward)


def numbers(conv, x, *rest):
    y = conv(x, *rest)
    y.sin().sum().backward()
    return [y, *(p.grad for p in conv.parameters())]


@pytest.mark.parametrize(("name", "given"), [
    ("GCNConv", (8, 5, False, True)),
    ("GCNConv", (8, 5, False, False, False)),
    ("GCNConv", (8, 5, False, False, None, False)),
    ("GCNConv", (8, 5, False, False, None, True, False)),
    ("SAGEConv", (8, 5, "sum", True, True, True, False)),
    ("SAGEConv", (-1, 5)), ("SAGEConv", ((-1, -1), 5)), ("GCNConv", (-1, 5)),
])  # fmt: skip
def test_positional_arguments_mean_the_same(name, given):
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    theirs, ours = getattr(pyg, name)(*given), getattr(maxk.nn, name)(*given)
    theirs(x, EDGES)
    ours.load_state_dict(theirs.state_dict())
    for got, want in zip(numbers(ours, x, EDGES), numbers(theirs, x, EDGES), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("settings", [
    {"flow": "source_to_target"}, {"node_dim": -2}, {"decomposed_layers": 2},
    {"node_dim": 0, "aggr_kwargs": None},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("name", LAYERS)
def test_keywords_of_message_passing(name, settings):
    given = (nn.Linear(8, 5),) if name == "GINConv" else (8, 5)
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    theirs = getattr(pyg, name)(*given, **settings)
    if name != "GCNConv":
        theirs.decomposed_layers = 1  # PyG splits no pair of features, which these layers make
    ours = getattr(maxk.nn, name)(*copy.deepcopy(given), **settings)
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(x, EDGES), theirs(x, EDGES))
    assert (ours.flow, ours.node_dim) == (theirs.flow, theirs.node_dim)
    assert ours.decomposed_layers == settings.get("decomposed_layers", 1)


@pytest.mark.parametrize(("name", "settings", "error", "text"), [
    ("GCNConv", {"improved": True}, ValueError, "improved must be False.*weight 2"),
    ("GCNConv", {"aggr": "max"}, ValueError, "aggr of GCNConv must be 'sum' or 'add', got 'max'"),
    ("SAGEConv", {"aggr": ["mean", "max"]}, ValueError, "aggr must be 'mean', 'sum' or 'add'"),
    ("SAGEConv", {"flow": "target_to_source"}, ValueError, r"flow of SAGEConv.*edge_index.flip"),
    ("GCNConv", {"node_dim": 1}, ValueError, "node_dim of GCNConv must be -2 or 0, got 1"),
    ("SAGEConv", {"aggr_kwargs": {"p": 1}}, ValueError, "aggr_kwargs of SAGEConv"),
    ("SAGEConv", {"decomposed_layers": 0}, ValueError, "decomposed_layers must be"),
    ("SAGEConv", {"wiegth": 1}, TypeError, "SAGEConv has no argument 'wiegth'"),
    ("SAGEConv", {"in_channels": -1, "project": True}, ValueError, "project=True needs the width"),
    ("SAGEConv", {"in_channels": -2}, ValueError, "in_channels must be at least 1, or -1"),
    ("GCNConv", {"in_channels": 0}, ValueError, "in_channels must be at least 1, or -1"),
])  # fmt: skip
def test_what_is_not_served_is_refused_in_one_sentence(name, settings, error, text):
    with pytest.raises(error, match=text):
        getattr(maxk.nn, name)(**{"in_channels": 8, "out_channels": 5, **settings})


def test_keywords_of_forward():
    conv = maxk.nn.SAGEConv(8, 5)
    x = torch.randn(4, 8)
    torch.testing.assert_close(conv(x=x, edge_index=EDGES, size=None), conv([x, x], EDGES))
    with pytest.raises(ValueError, match="x of GCNConv must be one matrix"):
        maxk.nn.GCNConv(8, 5)((x, x), EDGES)


@pytest.mark.parametrize("normalize", [True, False])
def test_cached_keeps_the_first_graph_as_pyg_does(normalize):
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    theirs = pyg.GCNConv(8, 5, cached=True, normalize=normalize)
    ours = maxk.nn.GCNConv(8, 5, cached=True, normalize=normalize)
    ours.load_state_dict(theirs.state_dict())
    weight = torch.rand(6)
    for edges, w in ((EDGES, weight), (EDGES.flip(0), None)):
        torch.testing.assert_close(ours(x, edges, w), theirs(x, edges, w))
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(copied(x, EDGES), ours(x, EDGES))
    theirs.reset_parameters()
    ours.reset_parameters()
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(x, EDGES.flip(0)), theirs(x, EDGES.flip(0)))


@pytest.mark.parametrize(("name", "given"), [
    ("SAGEConv", (-1, 5)), ("SAGEConv", ((-1, -1), 5)), ("SAGEConv", ((8, -1), 5)),
    ("GCNConv", (-1, 5)),
])  # fmt: skip
@pytest.mark.parametrize("compressed", [False, True])
def test_lazy_layers(name, given, compressed):
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    if compressed:
        x = maxk.maxk(x, 3)
    make = lambda: getattr(maxk.nn, name)(*given)  # noqa: E731
    conv = make()
    before = conv.state_dict()
    assert before.keys() == getattr(pyg, name)(*given).state_dict().keys()
    optimizer = torch.optim.SGD(conv.parameters(), lr=0.1)
    copied, pickled, loaded = copy.deepcopy(conv), pickle.loads(pickle.dumps(conv)), make()
    loaded.load_state_dict(before)
    conv.reset_parameters()
    with torch.inference_mode():
        conv(x, EDGES)
    assert all(type(child) is nn.Linear for child in conv.children())
    weights = [p.clone() for p in conv.parameters()]
    conv(x, EDGES).sum().backward()
    optimizer.step()
    assert any(not torch.equal(a, b) for a, b in zip(weights, conv.parameters(), strict=True))
    for other in (copied, pickled, loaded, make()):
        other(x, EDGES)
        other.load_state_dict(conv.state_dict())
        assert torch.equal(other(x, EDGES), conv(x, EDGES))
    fresh = make()
    fresh.load_state_dict(conv.state_dict())
    torch.testing.assert_close(fresh(x, EDGES), conv(x, EDGES))
    from_pyg = make()
    theirs = getattr(pyg, name)(*given)
    dense = x.to_dense() if compressed else x
    theirs(dense, EDGES)
    from_pyg.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(from_pyg(x, EDGES), theirs(dense, EDGES))


METADATA = (["a", "b"], [("a", "to", "b"), ("b", "back", "a"), ("a", "self", "a")])


def hetero_data():
    torch.manual_seed(0)
    x = {"a": torch.randn(5, 8), "b": torch.randn(4, 8)}
    edges = {
        kind: torch.stack([
            torch.randint(len(x[kind[0]]), (9,)), torch.randint(len(x[kind[2]]), (9,)),
        ]) for kind in METADATA[1]
    }  # fmt: skip
    return x, edges


class Two(nn.Module):
    def __init__(self, nn_):
        super().__init__()
        self.conv1, self.conv2 = nn_.SAGEConv((-1, -1), 6), nn_.SAGEConv((-1, -1), 3)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


def test_to_hetero_refuses_our_layers_and_says_what_to_do():
    with pytest.raises(TypeError, match=r"maxk.nn.SAGEConv cannot go through to_hetero.*convert"):
        pyg.to_hetero(Two(maxk.nn), METADATA)


def test_a_heterogeneous_model_of_pyg_converts():
    x, edges = hetero_data()
    theirs = pyg.to_hetero(Two(pyg), METADATA)
    theirs(x, edges)
    ours = maxk.convert(theirs, k=6)
    want, got = theirs(x, edges), ours(x, edges)
    assert got.keys() == want.keys()
    assert {row.k for row in maxk.conversion_report(ours).converted} == {None, 6}


def test_our_layers_in_hetero_conv():
    x, edges = hetero_data()
    made = []
    for nn_ in (pyg, maxk.nn):
        torch.manual_seed(0)
        made.append(pyg.HeteroConv({kind: nn_.SAGEConv((-1, -1), 3) for kind in METADATA[1]}))
        made[-1](x, edges)
    theirs, ours = made
    ours.load_state_dict(theirs.state_dict())
    for kind, want in theirs(x, edges).items():
        torch.testing.assert_close(ours(x, edges)[kind], want)


def test_counts_of_numpy():
    for count in (np.int64(4), np.int32(4)):
        assert maxk.to_graph(EDGES, num_nodes=count).num_src == 4
        assert maxk.Graph.from_edge_index(EDGES, num_nodes=count).num_src == 4
    graph = maxk.to_graph(EDGES, num_nodes=(np.int64(4), np.int64(5)))
    assert (graph.num_src, graph.num_dst) == (4, 5)
    conv = maxk.nn.SAGEConv((8, 8), 3)
    assert conv((torch.randn(4, 8), None), EDGES, size=(np.int64(4), np.int64(5))).shape == (5, 3)


@pytest.mark.parametrize("kind", ["GraphSAGE", "GCN"])
def test_a_converted_model_trims_sampled_layers(kind):
    """Numbers of sampled nodes and edges per hop: results of the seed nodes stay the same."""
    torch.manual_seed(0)
    # Two seeds; hop 1 brings nodes 2, 3 and hop 2 node 4.
    edges = torch.tensor([[2, 3, 2, 4, 4], [0, 1, 1, 2, 3]])
    x = torch.randn(5, 8)
    theirs = getattr(pyg.models, kind)(8, 6, 2, 3)
    trimmed = dict(num_sampled_nodes_per_hop=[2, 2, 1][:3], num_sampled_edges_per_hop=[3, 2])
    ours = maxk.convert(theirs, k=6)
    relu = copy.deepcopy(theirs)
    relu.act = maxk.nn.MaxK(6)
    torch.testing.assert_close(ours(x, edges, **trimmed)[:2], relu(x, edges, **trimmed)[:2])
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    with pytest.raises(ValueError, match=r"num_sampled_nodes_per_hop trims.*got a maxk.Graph"):
        ours(x, maxk.Graph.from_edge_index(edges, 5), **trimmed)
