from __future__ import annotations

import pytest
import torch

import maxk
from graphs import random_graph

pyg = pytest.importorskip("torch_geometric.nn")

PAIRS = {
    "SAGEConv": lambda m: m.SAGEConv(12, 7),
    "SAGEConv-sum": lambda m: m.SAGEConv(12, 7, aggr="sum", bias=False),
    "SAGEConv-normalize": lambda m: m.SAGEConv(12, 7, normalize=True, root_weight=False),
    "SAGEConv-project": lambda m: m.SAGEConv(12, 7, project=True),
    "GCNConv": lambda m: m.GCNConv(12, 7),
    "GCNConv-no-loops": lambda m: m.GCNConv(12, 7, add_self_loops=False, bias=False),
    "GCNConv-plain": lambda m: m.GCNConv(12, 7, normalize=False),
    "GINConv": lambda m: m.GINConv(torch.nn.Linear(12, 7), eps=0.3),
    "GINConv-train-eps": lambda m: m.GINConv(torch.nn.Linear(12, 7), train_eps=True),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("k", [None, 5])
def test_same_numbers_and_gradients_as_pyg(name, k):
    torch.manual_seed(0)
    theirs = PAIRS[name](pyg).double()
    ours = PAIRS[name](maxk.nn).double()
    ours.load_state_dict(theirs.state_dict())
    edges = random_graph(30, 30, 200, weighted=False).edge_index()
    # PyG merges parallel self-loops, where here each counts; keep one of each.
    loops = edges[:, edges[0] == edges[1]].unique(dim=1)
    edges = torch.cat([edges[:, edges[0] != edges[1]], loops], dim=1)
    x = torch.randn(30, 12, dtype=torch.float64)
    results = []
    for conv in (ours, theirs):
        leaf = x.clone().requires_grad_()
        h = leaf if k is None else maxk.maxk(leaf, k)
        if conv is theirs and k is not None:
            h = h.to_dense()
        y = conv(h, edges)
        y.sin().sum().backward()
        results.append((y, leaf.grad, *(p.grad for p in conv.parameters())))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-9)


def test_bipartite_sage_takes_a_pair():
    torch.manual_seed(0)
    graph = random_graph(6, 9, 30, weighted=False)
    theirs = pyg.SAGEConv((4, 5), 3)
    ours = maxk.nn.SAGEConv((4, 5), 3)
    ours.load_state_dict(theirs.state_dict())
    x = (torch.randn(6, 4), torch.randn(9, 5))
    torch.testing.assert_close(ours(x, graph), theirs(x, graph.edge_index(), size=(6, 9)))


@pytest.mark.parametrize("network", ["GraphSAGE", "GCN", "GIN"])
@pytest.mark.parametrize("nonlinearity", ["maxk", "relu"])
def test_models_take_dense_and_sparse_features(network, nonlinearity):
    torch.manual_seed(0)
    graph = random_graph(20, 20, 80, weighted=False)
    x = torch.where(torch.rand(20, 50) < 0.2, 1.0, 0.0)
    model = getattr(maxk.nn, network)(50, 16, 2, 3, k=4, nonlinearity=nonlinearity, norm="batch")
    dense = model(x, graph)
    dense.sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    sparse = model(x.to_sparse_csr(), graph)
    sparse.sum().backward()
    torch.testing.assert_close(sparse, dense, rtol=1e-4, atol=1e-5)
    for got, want in zip(model.parameters(), grads, strict=True):
        torch.testing.assert_close(got.grad, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("network", ["GraphSAGE", "GCN", "GIN"])
def test_maxk_of_full_width_is_the_linear_network(network):
    torch.manual_seed(0)
    graph = random_graph(20, 20, 80, weighted=False)
    x = torch.randn(20, 6)
    full = getattr(maxk.nn, network)(6, 8, 2, 3, k=8)
    with maxk.implementation("reference"):
        want = full(x, graph)
    torch.testing.assert_close(full(x, graph), want)


def test_dropout_acts_on_stored_values():
    h = maxk.maxk(torch.rand(50, 40) + 1, 10)
    kept = maxk.nn.dropout(h, 0.5, training=True)
    assert torch.equal(kept.columns, h.columns)
    zeros = (kept.values == 0).float().mean().item()
    assert 0.3 < zeros < 0.7
    alive = kept.values != 0
    torch.testing.assert_close(kept.values[alive], 2 * h.values[alive])
    assert maxk.nn.dropout(h, 0.5, training=False) is h


def test_maxk_module():
    x = torch.randn(2, 3, 8)
    y = maxk.nn.MaxK(2)(x)
    assert y.shape == x.shape
    assert (y != 0).sum(-1).eq(2).all()
    assert isinstance(maxk.nn.MaxK(2, compressed=True)(x[0]), maxk.CBSR)
    assert repr(maxk.nn.MaxK(2)) == "MaxK(k=2)"
    with pytest.raises(ValueError, match="k must lie in"):
        maxk.nn.MaxK(0)
    with pytest.raises(ValueError, match="got k=9"):
        maxk.nn.MaxK(9)(x)


@pytest.mark.parametrize(("change", "text"), [
    (dict(k=17), r"k must lie in \[1, 16\]"),
    (dict(nonlinearity="gelu"), "nonlinearity must be"),
    (dict(norm="graph"), "norm must be"),
    (dict(num_layers=0), "num_layers must be at least 1"),
    (dict(dropout=1.0), r"dropout must lie in \[0, 1\)"),
])  # fmt: skip
def test_bad_model_arguments(change, text):
    arguments = dict(in_channels=4, hidden_channels=16, num_layers=2, out_channels=3)
    with pytest.raises(ValueError, match=text):
        maxk.nn.GraphSAGE(**{**arguments, **change})


def test_data_parallel_on_a_cpu_is_the_plain_module():
    graph = maxk.Graph.from_edge_index(torch.tensor([[0], [3]]), 4)
    conv = maxk.nn.SAGEConv(1, 1, aggr="sum", root_weight=False, bias=False)
    torch.nn.init.ones_(conv.lin_l.weight)
    x = torch.tensor([[1.0], [2], [3], [4]])
    y = torch.nn.DataParallel(conv)(x, graph)
    assert y.flatten().tolist() == [0, 0, 0, 1]


def test_a_replica_of_data_parallel_is_refused():
    graph = maxk.Graph.from_edge_index(torch.tensor([[0], [3]]), 4)
    for module in (maxk.nn.SAGEConv(1, 1), maxk.nn.GCNConv(1, 1), maxk.nn.GraphSAGE(1, 4, 1, 2, 2)):
        module._is_replica = True  # what torch.nn.DataParallel sets on each of several copies
        with pytest.raises(RuntimeError, match=r"DataParallel.*DistributedDataParallel"):
            module(torch.ones(4, 1), graph)
