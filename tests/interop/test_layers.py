"""Layers called as PyG's are, on PyG's state dicts: the same numbers and gradients in float64."""

from __future__ import annotations

import pytest
import torch

import maxk
from graphs import random_graph

pyg = pytest.importorskip("torch_geometric.nn")

N, M, D = 20, 12, 6
EDGES = random_graph(N, N, 90, weighted=False).edge_index()
EDGES = EDGES[:, EDGES[0] != EDGES[1]]  # PyG merges parallel self-loops


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def compare(ours, theirs, call, *leaves) -> None:
    """Outputs and the gradients of inputs and parameters."""
    ours.load_state_dict(theirs.state_dict(), strict=True)
    results = []
    for conv in (ours, theirs):
        y = call(conv)
        y.sin().sum().backward()
        results.append([y, *(x.grad for x in leaves), *(p.grad for p in conv.parameters())])
        for x in leaves:
            x.grad = None
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("options", [
    {}, {"add_self_loops": False}, {"normalize": False}, {"bias": False},
])  # fmt: skip
def test_gcn_with_edge_weights(options):
    torch.manual_seed(0)
    x = leaf(N, D)
    weight = (torch.rand(EDGES.shape[1], dtype=torch.float64) + 0.5).requires_grad_()
    ours, theirs = (m.GCNConv(D, 4, **options).double() for m in (maxk.nn, pyg))
    compare(ours, theirs, lambda conv: conv(x, EDGES, weight), x, weight)
    fixed = weight.detach()
    compare(ours, theirs, lambda conv: conv(x, EDGES, edge_weight=fixed), x)


@pytest.mark.parametrize("form", ["edge_index", "EdgeIndex", "adj_t"])
@pytest.mark.parametrize("kind", ["SAGEConv", "GINConv"])
def test_bipartite(kind, form):
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    edges = torch.stack([torch.randint(0, n, (40,), generator=g) for n in (N, M)]).unique(dim=1)
    if form == "EdgeIndex":
        edges = pytest.importorskip("torch_geometric").EdgeIndex(
            edges.contiguous(), sparse_size=(N, M)
        )
    if form == "adj_t":
        edges = torch.sparse_coo_tensor(
            edges.flip(0), torch.ones(edges.shape[1], dtype=torch.float64), (M, N)
        ).to_sparse_csr()
    x = (leaf(N, D), leaf(M, D))

    def make(modules):
        if kind == "GINConv":
            return modules.GINConv(torch.nn.Linear(D, 4), train_eps=True).double()
        return modules.SAGEConv((D, D), 4).double()

    compare(make(maxk.nn), make(pyg), lambda conv: conv(x, edges), *x)


def test_no_features_of_the_targets():
    x = leaf(N, D)
    edges = torch.tensor([[0, 3, 3], [1, 0, 4]])
    ours, theirs = (m.SAGEConv((D, D), 4).double() for m in (maxk.nn, pyg))
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(
        ours((x, None), edges, size=(N, M)), theirs((x, None), edges, size=(N, M))
    )
