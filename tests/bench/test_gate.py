from __future__ import annotations

import pytest
import torch

from maxk.bench.kernels import gate
from maxk.bench.kernels.gate import Expected, GateError, Truth, judge, poisoned, run_poisoned
from maxk.graph.graph import Graph
from maxk.ops.spmm import reference

CPU = torch.device("cpu")


def exact(value: torch.Tensor) -> Expected:
    """A truth whose entries are one term each."""
    return Expected(value, value.abs().float())


def bipartite(weighted: bool = False) -> Graph:
    """Three sources, four targets: a repeated edge, a target without edges, a hub."""
    edges = torch.tensor([[0, 1, 2, 2, 0, 1], [0, 0, 0, 2, 3, 3]])
    weight = torch.tensor([0.5, 2.0, 1.0, 3.0, 1.0, 4.0]) if weighted else None
    return Graph.from_edge_index(edges, num_nodes=(3, 4), edge_weight=weight)


@pytest.mark.parametrize("weighted", [False, True])
def test_truth_is_the_definition(weighted: bool) -> None:
    graph = bipartite(weighted)
    adjacency = graph.adjacency("mean", torch.float64)
    truth = Truth(graph.adjacency("mean", torch.float32), graph.weight)
    x, grad = torch.randn(3, 5), torch.randn(4, 5)
    weight = None if graph.weight is None else graph.weight.double()
    expected = reference.spmm(adjacency, weight, x.double())
    torch.testing.assert_close(truth.forward(x).value, expected, rtol=1e-6, atol=1e-7)
    expected = reference.spmm_t(adjacency, weight, grad.double())
    torch.testing.assert_close(truth.backward(grad).value, expected, rtol=1e-6, atol=1e-7)


def test_a_truth_that_disagrees_with_the_definition_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = bipartite()
    truth = Truth(graph.adjacency("mean", torch.float32), None)
    real = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b: real(a, b) * (1 + 1e-9))
    with pytest.raises(GateError, match="forward disagrees with the definition"):
        truth.forward(torch.randn(3, 5))
    with pytest.raises(GateError, match="backward disagrees with the definition"):
        truth.backward(torch.randn(4, 5))


def test_rounding_passes_and_one_wrong_row_of_many_does_not() -> None:
    truth = torch.randn(200_000, 4, dtype=torch.float64)
    out = truth.float()
    assert judge(out, exact(truth), torch.float32).passed
    out[123_456] *= 1.01
    verdict = judge(out, exact(truth), torch.float32)
    assert verdict.error < 1e-4
    assert not verdict.passed


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_cell_that_is_not_finite_never_passes(value: float) -> None:
    truth = torch.randn(10, 4, dtype=torch.float64)
    out = truth.float()
    out[3, 2] = value
    assert not judge(out, exact(truth), torch.float32).passed


def test_zero_truth_wants_zeros() -> None:
    truth = torch.zeros(3, 2, dtype=torch.float64)
    assert judge(torch.zeros(3, 2), exact(truth), torch.float32).passed
    assert not judge(torch.full((3, 2), 1e-30), exact(truth), torch.float32).passed
    assert judge(torch.zeros(0, 2), exact(truth[:0]), torch.float32).passed


def test_shapes_must_agree() -> None:
    with pytest.raises(GateError, match=r"shape \[2, 2\], expected \[3, 2\]"):
        judge(torch.zeros(2, 2), exact(torch.zeros(3, 2, dtype=torch.float64)), torch.float32)


def test_fresh_memory_is_poisoned_inside_and_not_outside() -> None:
    with poisoned(CPU, 64):
        inside = [torch.empty(3), torch.empty_like(torch.ones(2)), torch.ones(2).new_empty(4)]
        integers = torch.empty_strided((3,), (1,), dtype=torch.uint8)
    assert all(bool(tensor.isnan().all()) for tensor in inside)
    assert integers.tolist() == [255, 255, 255]
    torch.zeros(2)
    out = run_poisoned(lambda: torch.empty(5), CPU, 20)
    assert isinstance(out, torch.Tensor) and bool(out.isnan().all())


def test_sampled_rows_lie_where_the_whole_has_them() -> None:
    graph = bipartite()
    part, edges = gate._take_rows(graph.indptr, graph.indices, torch.tensor([3, 1, 0]), 3)
    assert part.indptr.tolist() == [0, 2, 2, 5]
    assert part.indices.tolist() == [0, 1, 0, 1, 2]
    assert edges.tolist() == [4, 5, 0, 1, 2]
