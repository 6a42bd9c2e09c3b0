"""A symmetric normalisation has no square root of a negative degree: one sentence, never NaN."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import maxk

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
EDGE = torch.tensor([[0], [1]])
SENTENCE = r"edge_weight gives node 1 the degree -1 .*reduce='gcn'.*reduce='sum' or 'mean'"


def graph(weight: Tensor) -> maxk.Graph:
    return maxk.Graph.from_edge_index(EDGE, 2, weight)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("dense", [False, True])
def test_a_graph(learned: bool, dense: bool) -> None:
    g = graph(torch.tensor([-2.0]).requires_grad_(learned))
    h = X if dense else maxk.maxk(X, 1)
    for _ in range(2):
        with pytest.raises(ValueError, match=SENTENCE):
            maxk.aggregate(g, h, "gcn")
    for reduce in ("sum", "mean"):
        assert maxk.aggregate(g, h, reduce).isfinite().all()


@pytest.mark.parametrize("learned", [False, True])
def test_an_edge_list_a_matrix_and_layers(learned: bool) -> None:
    w = torch.tensor([-2.0]).requires_grad_(learned)
    with pytest.raises(ValueError, match=SENTENCE):
        maxk.aggregate(EDGE, X, "gcn", edge_weight=w)
    with pytest.raises(ValueError, match=SENTENCE):
        maxk.nn.GCNConv(2, 2)(X, EDGE, w)
    matrix = torch.tensor([[0.0, 0.0], [-2.0, 0.0]]).to_sparse_csr()
    with pytest.raises(ValueError, match=SENTENCE):
        maxk.aggregate(matrix, X, "gcn")
    with pytest.raises(ValueError, match=SENTENCE):
        graph(w).prepare("gcn")


def test_weights_that_become_negative_and_positive_again() -> None:
    w = torch.tensor([2.0])
    g = graph(w)
    want = maxk.aggregate(g, X, "gcn")
    w.data.mul_(-1)
    with pytest.raises(ValueError, match=SENTENCE):
        maxk.aggregate(g, X, "gcn")
    w.data.mul_(-1)
    assert torch.equal(maxk.aggregate(g, X, "gcn"), want)


@pytest.mark.parametrize("learned", [False, True])
def test_a_degree_of_zero_gives_zero(learned: bool) -> None:
    w = torch.tensor([-1.0]).requires_grad_(learned)  # with the self-loop, 0
    y = maxk.aggregate(graph(w), X, "gcn")
    assert y.tolist() == [[1.0, 2.0], [0.0, 0.0]]
    y = maxk.aggregate(graph(torch.zeros(1).requires_grad_(learned)), X, "gcn",
                       fill_self_loops=False)  # fmt: skip
    assert y.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_a_negative_weight_with_a_positive_degree_is_an_edge_like_any_other() -> None:
    y = maxk.aggregate(graph(torch.tensor([-0.5])), X, "gcn")
    torch.testing.assert_close(y[1], (-0.5 * X[0] / 0.5**0.5 + X[1] / 0.5))


@pytest.mark.parametrize("learned", [False, True])
def test_a_compiled_call_does_not_look(learned: bool) -> None:
    """A compiler cannot ask for a value; what it computes is NaN at that node and nowhere else."""
    torch._dynamo.reset()
    g = graph(torch.tensor([-2.0]).requires_grad_(learned))
    g.with_self_loops()
    run = torch.compile(lambda x: maxk.aggregate(g, x, "gcn"), backend="eager", fullgraph=True)
    y = run(X)
    assert y[1].isnan().all()
    assert y[0].tolist() == [1.0, 2.0]


@pytest.mark.gpu
@pytest.mark.parametrize("learned", [False, True])
def test_a_gpu(learned: bool) -> None:
    w = torch.tensor([-2.0], device="cuda").requires_grad_(learned)
    g = maxk.Graph.from_edge_index(EDGE.cuda(), 2, w)
    with pytest.raises(ValueError, match=SENTENCE):
        maxk.aggregate(g, X.cuda(), "gcn")


@pytest.mark.gpu
def test_a_gpu_looks_again_when_constant_weights_change_in_place() -> None:
    w = torch.tensor([2.0], device="cuda")
    g = maxk.Graph.from_edge_index(EDGE.cuda(), 2, w)
    maxk.aggregate(g, X.cuda(), "gcn")
    w.mul_(-1)
    with pytest.raises(ValueError, match=SENTENCE):
        maxk.aggregate(g, X.cuda(), "gcn")
