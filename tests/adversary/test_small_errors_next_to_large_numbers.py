"""The benchmark's gate compares each row, and each gradient, at its own size."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

import maxk
from maxk.bench.epochs import run as epoch
from maxk.bench.epochs.run import EpochBench, case_task, epochs
from maxk.bench.kernels import ours, run
from maxk.bench.kernels.cases import Case
from maxk.bench.kernels.gate import GateError, Truth, fixed_step, judge
from maxk.bench.kernels.run import KernelBench, kernels
from maxk.data.synthetic import SyntheticConfig
from maxk.nn.models import GIN
from maxk.ops.maxk import reference
from maxk.train.step import Step

NODES, WIDTH, K = 400, 64, 8
CASE = Case("little", SyntheticConfig(nodes=60, degree=6.0), widths=(12,), ks=(3,))


def graph() -> maxk.Graph:
    """Edges within the first half of the nodes, and within the second."""
    half = NODES // 2
    edges = torch.randint(half, (2, 8 * half), generator=torch.Generator().manual_seed(0))
    return maxk.Graph.from_edge_index(torch.cat([edges, edges + half], 1), NODES)


def features(small: float) -> maxk.CBSR:
    """Random features, those of the second half of the nodes ``small`` times as large."""
    x = torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(1))
    x[NODES // 2 :] *= small
    return maxk.maxk(x, K)


def dense(h: maxk.CBSR) -> torch.Tensor:
    return reference.scatter(h.values, h.columns, h.width)


@pytest.mark.parametrize("small", [1.0, 1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize("reduce", ["sum", "mean", "gcn"])
def test_small_rows_returned_as_zeros_do_not_pass(small: float, reduce: str) -> None:
    g, h = graph(), features(small)
    whole = g.with_self_loops() if reduce == "gcn" else g
    truth = Truth(whole.adjacency(reduce, torch.float32), None).forward(dense(h))
    y = maxk.aggregate(g, h, reduce)
    assert judge(y, truth, torch.float32).passed
    y[NODES // 2 :] = 0
    assert not judge(y, truth, torch.float32).passed


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_small_rows_of_a_gradient_returned_as_zeros_do_not_pass(dtype: torch.dtype) -> None:
    g = graph()
    grad = torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(2))
    grad[NODES // 2 :] *= 1e-3
    grad = grad.to(dtype)
    x = torch.zeros(NODES, WIDTH, dtype=dtype, requires_grad=True)
    (out,) = torch.autograd.grad(maxk.aggregate(g, x, "mean"), x, grad)
    truth = Truth(g.adjacency("mean", torch.float32), None).backward(grad)
    columns = features(1.0).columns.long()
    assert judge(out, truth, dtype).passed
    assert judge(out.gather(1, columns), truth.gather(columns), dtype).passed
    out[NODES // 2 :] = 0
    assert not judge(out, truth, dtype).passed
    assert not judge(out.gather(1, columns), truth.gather(columns), dtype).passed


def test_one_small_row_of_many_is_compared_at_its_own_size() -> None:
    g, h = graph(), features(1e-6)
    truth = Truth(g.adjacency("mean", torch.float32), None).forward(dense(h))
    y = maxk.aggregate(g, h, "mean")
    y[NODES - 1] *= 1.001
    assert not judge(y, truth, torch.float32).passed


def test_what_cancels_may_differ_by_the_rounding_of_its_terms() -> None:
    """Two large neighbours of opposite sign leave a small sum, known to their rounding only."""
    x = torch.tensor([[1.0, 3.0], [-1.0, -3.0 + 1e-6], [0.0, 0.0]])
    g = maxk.Graph.from_edge_index(torch.tensor([[0, 1], [2, 2]]), 3)
    truth = Truth(g.adjacency("sum", torch.float32), None).forward(x)
    near, far = maxk.aggregate(g, x, "sum"), maxk.aggregate(g, x, "sum")
    near[2] += 1e-7
    far[2] += 1e-4
    assert judge(near, truth, torch.float32).error > 0.1
    assert judge(near, truth, torch.float32).worst_row < 1
    assert judge(far, truth, torch.float32).worst_row > 1


def quantised(h: maxk.CBSR) -> maxk.CBSR:
    """What fixed-point words hold of the values."""
    step = fixed_step(h.width) * h.values.abs().max()
    return h.with_values((h.values / step).round() * step)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_fixed_point_words_pass_under_their_own_contract_only(reduce: str) -> None:
    g, h = graph(), features(1e-2)
    truth = Truth(g.adjacency(reduce, torch.float32), None)
    expected = truth.forward(dense(h))
    y = maxk.aggregate(g, quantised(h), reduce)
    assert judge(y, replace(expected, fixed=truth.fixed(h)), torch.float32).passed
    assert not judge(y, expected, torch.float32).passed
    coarse = maxk.aggregate(g, quantised(h.with_values(h.values * 1000)), reduce) / 1000
    coarse[:, ::2] += 100 * fixed_step(WIDTH) * h.values.abs().max()
    assert not judge(coarse, replace(expected, fixed=truth.fixed(h)), torch.float32).passed


def test_rows_below_a_fixed_point_step_do_not_pass_as_zeros() -> None:
    h = features(1e-8)
    g = graph()
    truth = Truth(g.adjacency("mean", torch.float32), None)
    expected = replace(truth.forward(dense(h)), fixed=truth.fixed(h))
    y = maxk.aggregate(g, quantised(h), "mean")
    assert not y[NODES // 2 :].any()
    assert not judge(y, expected, torch.float32).passed


@pytest.mark.parametrize("width", [1, 256, 257, 512, 1024, 4096])
def test_a_step_is_what_the_words_leave_for_the_value(width: int) -> None:
    from maxk.ops.spgemm.plan_cuda import word_macros

    limit = dict(word_macros(width))["LIMIT"]
    assert fixed_step(width) == pytest.approx(1 / limit, rel=1e-5)


def test_kernels_that_drop_small_rows_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    real_matrix, real_forward = run.random_matrix, ours.forward

    def half_small(*args: Any) -> torch.Tensor:
        x = real_matrix(*args)
        x[: len(x) // 2] *= 1e-6
        return x

    def dropping(problem: Any, implementation: str = "auto") -> Any:
        def call() -> torch.Tensor:
            y: torch.Tensor = real_forward(problem, implementation)().clone()
            y[y.norm(dim=1) < 1e-3 * y.norm(dim=1).max()] = 0
            return y

        return call

    monkeypatch.setattr(run, "random_matrix", half_small)
    bench = KernelBench("quick", (CASE,), torch.device("cpu"), ops=("forward",), rounds=1)
    assert list(itertools.chain(*kernels(bench, lambda text: None)))
    monkeypatch.setattr(ours, "forward", dropping)
    with pytest.raises(GateError, match="forward by auto on little, D = 12, k = 3 is wrong"):
        list(kernels(bench, lambda text: None))


EPOCH_CASE = Case(
    "little", SyntheticConfig(nodes=80, degree=6.0, features=5, communities=3), layers=2
)


def spoiled(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], factor: float) -> None:
    """Multiplies some gradients of our GIN."""
    real = Step.gradients

    def gradients(step: Step, **how: Any) -> Any:
        loss, grads = real(step, **how)
        if isinstance(step.model, GIN):
            chosen = [name for name in grads if name.endswith(names)]
            assert chosen
            grads.update({name: factor * grads[name] for name in chosen})
        return loss, grads

    monkeypatch.setattr(Step, "gradients", gradients)


@pytest.mark.parametrize("name", ["eps", "norms.0.weight", "lin_in.bias", "lin_out.weight"])
@pytest.mark.parametrize("factor", [-1.0, 0.0, 1.2])
def test_a_wrong_gradient_of_one_parameter_does_not_pass(
    name: str, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoiled(monkeypatch, (name,), factor)
    monkeypatch.setattr(epoch, "time_steps", lambda *args, **kwargs: pytest.fail("it was timed"))
    bench = EpochBench("quick", torch.device("cpu"), ks=(3,), models=("gin",), rounds=1)
    task = case_task(EPOCH_CASE, 12, torch.device("cpu"))
    with pytest.raises(GateError, match=rf"auto gin on little is wrong: .*{name}"):
        list(epochs(replace(bench, against=("topk-mask",)), task, lambda text: None))
