"""Edge weights that change by any route are the weights of the next call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import maxk
from standins import StandInDGLGraph

EDGES = torch.tensor([[3, 0, 1, 4, 0, 2, 3], [1, 2, 1, 3, 1, 0, 2]])
N, E = 6, 7
X = torch.arange(12.0).reshape(6, 2) + 1


def _data(w: Tensor) -> None:
    w.data.mul_(3)


def _numpy(w: Tensor) -> None:
    w.numpy()[:] *= 3


def _other_memory(w: Tensor) -> None:
    w.data = w.detach() * 3


def _set(w: Tensor) -> None:
    w.set_((w.detach() * 3).untyped_storage(), 0, w.shape)


def _in_place(w: Tensor) -> None:
    w.mul_(3)


def _inference(w: Tensor) -> None:
    with torch.inference_mode():
        w.mul_(3)


def _no_grad(w: Tensor) -> None:
    with torch.no_grad():
        w[0] = 30.0


def _back_and_forth(w: Tensor) -> None:
    """Two changes, after which the version counter of another tensor would agree."""
    w.data[0] += 1
    w.data[1] += 1


CHANGES = [_data, _numpy, _other_memory, _set, _in_place, _inference, _no_grad, _back_and_forth]
FORMS: dict[str, Callable[[Tensor], tuple[Any, Tensor | None]]] = {
    "from_edge_index": lambda w: (maxk.Graph.from_edge_index(EDGES, N, w), None),
    "from_csr": lambda w: (
        maxk.Graph.from_csr(
            torch.tensor([0, 1, 4, 6, 7, 7, 7]), torch.tensor([2, 1, 0, 3, 0, 3, 4]), w
        ),
        None,
    ),
    "with_weight": lambda w: (
        maxk.Graph.from_edge_index(EDGES, N, torch.ones(E)).with_weight(w), None,
    ),
    "transposed": lambda w: (maxk.Graph.from_edge_index(EDGES, N, w).transpose(), None),
    "filled": lambda w: (maxk.Graph.from_edge_index(EDGES, N, w).with_self_loops(), None),
    "edge_index": lambda w: (EDGES, w),
    "DGL": lambda w: (maxk.to_graph(StandInDGLGraph(EDGES, (N, N)), edge_weight=w), None),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reduce", ["sum", "mean", "gcn"])
@pytest.mark.parametrize("made", ["plain", "inference"])
def test_the_next_call_sees_the_present_weights(
    change: Callable[[Tensor], None], form: str, reduce: str, made: str
) -> None:
    with torch.inference_mode(made == "inference"):
        w = torch.linspace(0.5, 2.0, E)
    graph, weight = FORMS[form](w)
    h = maxk.maxk(X, 1)
    for _ in range(2):
        now, present = FORMS[form](w.clone())
        for features in (X, h):
            got = maxk.aggregate(graph, features, reduce, edge_weight=weight)
            want = maxk.aggregate(now, features, reduce, edge_weight=present)
            assert torch.equal(got, want)
        with torch.inference_mode(made == "inference"):
            change(w)


def test_two_nodes() -> None:
    w = torch.ones(2)
    graph = maxk.Graph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), 2, w)
    x = torch.tensor([[1.0], [3.0]])
    torch.testing.assert_close(maxk.aggregate(graph, x, "gcn"), torch.tensor([[2.0], [2.0]]))
    w.data.mul_(3)
    torch.testing.assert_close(maxk.aggregate(graph, x, "gcn"), torch.tensor([[2.5], [1.5]]))


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo])
def test_values_of_a_matrix(layout: torch.layout) -> None:
    dense = torch.zeros(N, N)
    dense[EDGES[1], EDGES[0]] = torch.linspace(0.5, 2.0, E)
    matrix = dense.to_sparse(layout=layout)
    if layout == torch.sparse_coo:
        matrix = matrix.coalesce()
    for _ in range(2):
        got = maxk.aggregate(matrix, X, "gcn")
        want = maxk.aggregate(maxk.to_graph(matrix.to_dense().to_sparse_csr()), X, "gcn")
        torch.testing.assert_close(got, want)
        matrix.values().data.mul_(3)


@pytest.mark.gpu
@pytest.mark.parametrize("change", [_data, _other_memory, _set, _in_place, _inference, _no_grad])
@pytest.mark.parametrize("reduce", ["sum", "mean", "gcn"])
def test_the_next_call_on_a_gpu_sees_the_present_weights(
    change: Callable[[Tensor], None], reduce: str
) -> None:
    w = torch.linspace(0.5, 2.0, E, device="cuda")
    edges, x = EDGES.cuda(), X.cuda()
    graph = maxk.Graph.from_edge_index(edges, N, w)
    for _ in range(3):
        now = maxk.Graph.from_edge_index(edges, N, w.clone())
        for features in (x, maxk.maxk(x, 1)):
            got = maxk.aggregate(graph, features, reduce)
            torch.testing.assert_close(got, maxk.aggregate(now, features, reduce))
        change(w)


@pytest.mark.gpu
def test_scales_of_unchanged_weights_repeat_bit_by_bit_on_a_gpu() -> None:
    g = torch.Generator().manual_seed(0)
    edges = torch.randint(300, (2, 60_000), generator=g).cuda()
    graph = maxk.Graph.from_edge_index(edges, 300, torch.rand(60_000, generator=g).cuda())
    x = maxk.maxk(torch.randn(300, 64, generator=g).cuda(), 8)
    want = maxk.aggregate(graph, x, "gcn")
    assert all(torch.equal(maxk.aggregate(graph, x, "gcn"), want) for _ in range(5))
