"""A user's own layer of PyG gains our aggregation and keeps its numbers."""

from __future__ import annotations

import pytest
import torch

import maxk
from graphs import random_graph
from maxk.ops import dispatch

pyg = pytest.importorskip("torch_geometric.nn")
EdgeIndex = pytest.importorskip("torch_geometric").EdgeIndex

N, M, WIDTH = 20, 12, 8
EDGES = random_graph(N, N, 90, weighted=False).edge_index()
WEIGHT = torch.linspace(0.5, 2, EDGES.shape[1], dtype=torch.float64)


class Plain(pyg.MessagePassing):
    def __init__(self, aggr="sum"):
        super().__init__(aggr=aggr)
        self.lin = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x) if isinstance(x, tuple | maxk.CBSR) else (
            self.propagate(edge_index, x=self.lin(x)))  # fmt: skip

    def update(self, out):
        return out.tanh()


class Weighted(Plain):
    def forward(self, x, edge_index, edge_weight=None):
        return self.propagate(edge_index, x=self.lin(x), edge_weight=edge_weight)

    def message(self, x_j, edge_weight):
        return x_j if edge_weight is None else edge_weight.view(-1, 1) * x_j


class Fused(maxk.interop.FusedMessage, Plain):
    pass


class FusedWeighted(maxk.interop.FusedMessage, Weighted):
    pass


class Hooked(Plain):
    def message_and_aggregate(self, adj_t, x):
        return maxk.interop.propagate(adj_t, x, self.aggr)


def adj_t(weight=None):
    edges = EDGES.unique(dim=1)
    matrix = torch.zeros(N, N, dtype=torch.float64)
    matrix[edges[1], edges[0]] = (
        1.0 if weight is None else torch.rand(edges.shape[1]).double() + 0.5
    )
    return matrix.to_sparse_csr()


def compare(ours, theirs, x, *arguments):
    ours.load_state_dict(theirs.state_dict())
    results = []
    for conv in (ours.double(), theirs.double()):
        leaves = [a.detach().clone().requires_grad_() if a.is_floating_point()
                  and a.layout == torch.strided else a for a in (x, *arguments)]  # fmt: skip
        y = conv(*leaves)
        y.sin().sum().backward()
        grads = [leaf.grad for leaf in leaves if leaf.requires_grad]
        results.append((y, *grads, *(p.grad for p in conv.parameters())))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("aggr", ["sum", "add", "mean"])
@pytest.mark.parametrize("form", ["edge_index", "EdgeIndex", "adj_t", "weighted adj_t"])
def test_same_numbers_as_the_plain_layer(aggr, form):
    torch.manual_seed(0)
    edges = {
        "edge_index": lambda: EDGES,
        "EdgeIndex": lambda: EdgeIndex(EDGES, sparse_size=(N, N)),
        "adj_t": adj_t,
        "weighted adj_t": lambda: adj_t(WEIGHT),
    }[form]()
    compare(Fused(aggr), Plain(aggr), torch.randn(N, WIDTH, dtype=torch.float64), edges)


@pytest.mark.parametrize("aggr", ["sum", "mean"])
def test_weights_and_their_gradient(aggr):
    torch.manual_seed(0)
    x = torch.randn(N, WIDTH, dtype=torch.float64)
    compare(FusedWeighted(aggr), Weighted(aggr), x, EDGES, WEIGHT)
    compare(FusedWeighted(aggr), Weighted(aggr), x, EDGES)
    compare(FusedWeighted(aggr), Weighted(aggr), x, adj_t(WEIGHT))


def test_pair_of_sides():
    edges = torch.tensor([[0, 19, 4, 4], [1, 0, 11, 1]])
    x = (torch.randn(N, WIDTH), torch.randn(M, WIDTH))
    torch.testing.assert_close(Fused()(x, edges), Plain()(x, edges))


def test_cbsr_runs_spgemm(monkeypatch):
    ran, run = [], dispatch.call
    monkeypatch.setattr(dispatch, "call", lambda op, f, *a: (ran.append(f), run(op, f, *a))[1])
    h = maxk.maxk(torch.randn(N, WIDTH), 2)
    y = Fused()(h, EDGES)
    assert ran.count("spgemm") == 1
    torch.testing.assert_close(y, Plain()((h.to_dense(), h.to_dense()), EDGES))


def test_the_hook_of_pyg(monkeypatch):
    torch.manual_seed(0)
    ran, run = [], dispatch.call
    monkeypatch.setattr(dispatch, "call", lambda op, f, *a: (ran.append(f), run(op, f, *a))[1])
    compare(Hooked(), Plain(), torch.randn(N, WIDTH, dtype=torch.float64), adj_t())
    assert "spmm" in ran


def test_a_wrong_declaration_is_refused_when_the_class_is_made():
    with pytest.raises(ValueError, match=r"message_is of Odd must be 'x_j' or .* got 'x_i'"):

        class Odd(maxk.interop.FusedMessage, Plain):
            message_is = "x_i"
