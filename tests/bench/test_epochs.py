from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from maxk.bench.epochs import networks
from maxk.bench.epochs import run as epoch
from maxk.bench.epochs.run import EpochBench, Task, case_task, epochs
from maxk.bench.kernels.cases import Case
from maxk.bench.kernels.gate import GateError
from maxk.data.synthetic import SyntheticConfig
from maxk.measure.record import Row
from maxk.measure.rows import from_json, to_json
from maxk.nn.models import GCN, GIN, GraphSAGE
from maxk.train.step import Step

CPU = torch.device("cpu")
CASE = Case("little", SyntheticConfig(nodes=80, degree=6.0, features=5, communities=3), layers=2)
BENCH = EpochBench(
    "quick", CPU, ks=(3, 40), against=("relu-eager", "pyg-csr", "topk-mask"), rounds=1
)


@pytest.fixture
def task() -> Task:
    return case_task(CASE, 12, CPU)


def measured(bench: EpochBench, task: Task) -> tuple[list[Row], list[str]]:
    said: list[str] = []
    return list(itertools.chain(*epochs(bench, task, said.append))), said


def test_rows_of_every_model_and_contender(task: Task) -> None:
    pytest.importorskip("torch_geometric")
    rows, said = measured(replace(BENCH, models=("sage", "gcn", "gin")), task)
    assert said == []
    assert {(r.model, r.implementation, r.against) for r in rows if r.against} == {
        (model, "auto", against)
        for model in ("sage", "gcn", "gin")
        for against in ("relu-eager", "pyg-csr", "topk-mask")
    }
    for row in rows:
        assert from_json(Row, to_json(row)).key == row.key
        assert (row.op, row.layers, row.width, row.edges) == ("epoch", 2, 12, task.graph.num_edges)
        assert row.k == (3 if row.implementation in ("auto", "topk-mask") else None)
    split = next(r.split for r in rows if r.implementation == "auto" and r.split)
    assert list(split) == ["select", "forward", "backward", "dense", "optimiser"]
    assert all(split[part] > 0 for part in ("select", "forward", "backward", "optimiser"))


def test_a_missing_library_is_named(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch.importlib.util, "find_spec", lambda name: None)
    rows, said = measured(replace(BENCH, against=("dgl", "pyg-csr")), task)
    assert said == [
        "not timed: pyg-csr: torch_geometric is not installed",
        "not timed: dgl: dgl is not installed",
    ]
    assert {r.implementation for r in rows} == {"auto"}


def test_wrong_gradients_of_ours_are_not_timed(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Step.gradients

    def broken(step: Step, **how: Any) -> Any:
        loss, grads = real(step, **how)
        if isinstance(step.model, GraphSAGE):
            name = "layers.0.lin_l.weight"
            grads[name] = 1.5 * grads[name]
        return loss, grads

    monkeypatch.setattr(Step, "gradients", broken)
    monkeypatch.setattr(epoch, "time_steps", lambda *args, **kwargs: pytest.fail("it was timed"))
    with pytest.raises(GateError, match="auto sage on little is wrong: gradients differ by"):
        measured(replace(BENCH, against=("topk-mask",)), task)


def test_a_wrong_contender_is_left_out(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    real = networks.topk_mask
    monkeypatch.setattr(networks, "topk_mask", lambda net, graph, k: real(net, graph, k - 1))
    rows, said = measured(replace(BENCH, against=("topk-mask",)), task)
    assert {r.implementation for r in rows} == {"auto"}
    assert said[0].startswith("not timed: topk-mask sage on little: ") and "is wrong" in said[0]


@pytest.mark.parametrize("late", [False, True])
def test_a_contender_without_memory_is_left_out_with_a_line(
    task: Task, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    real, calls = Step.__call__, 0

    def full(step: Step) -> Any:
        nonlocal calls
        if isinstance(step.model, networks.Plain):
            calls += 1
            # Two steps warm a contender up, the third runs it beside the others.
            if calls > 2 or not late:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return real(step)

    monkeypatch.setattr(Step, "__call__", full)
    rows, said = measured(replace(BENCH, against=("topk-mask",)), task)
    assert {r.implementation for r in rows} == {"auto"}
    where = " beside the others at k = 3" if late else ""
    assert said == [f"not timed: topk-mask sage on little: out of memory{where}"]


@pytest.mark.parametrize("network", [GraphSAGE, GCN, GIN])
def test_foreign_networks_are_the_same_function(network: Any, task: Task) -> None:
    relu = network(5, 12, 2, 3, nonlinearity="relu")
    kept = network(5, 12, 2, 3, k=4)
    reduce = networks.REDUCE[network]
    product = networks.sparse_product(task.graph, reduce, torch.float32)
    pairs: list[tuple[nn.Module, nn.Module]] = [
        (relu, networks.Plain(relu, product, torch.relu)),
        (kept, networks.Plain(kept, product, networks.mask_activation(4))),
        (kept, networks.topk_mask(kept, task.graph, 4)),
    ]
    for mine, theirs in pairs:
        out, expected = theirs(task.x), mine(task.x, task.graph)
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


def test_the_split_adds_up_to_the_step(task: Task) -> None:
    model = GraphSAGE(5, 12, 2, 3, k=4)
    step = Step(model, lambda: model(task.x, task.graph), task.target)
    before = [p.detach().clone() for p in model.parameters()]
    parts = step.split(rounds=1)
    assert sum(parts.values()) > 0
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_gradients_leave_weights_and_mode_alone(task: Task) -> None:
    model = GraphSAGE(5, 12, 2, 3, k=4, dropout=0.5)
    step = Step(model, lambda: model(task.x, task.graph), task.target)
    before = [p.detach().clone() for p in model.parameters()]
    first, second = step.gradients(), step.gradients()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert model.training
    # Without dropout: twice the same.
    assert torch.equal(first[0], second[0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_all_of_ours_run_and_memory_is_known() -> None:
    device = torch.device("cuda")
    bench = replace(
        BENCH,
        device=device,
        implementations=epoch.IMPLEMENTATIONS,
        against=("relu-compiled", "relu-eager", "topk-mask"),
    )
    rows, _ = measured(bench, case_task(CASE, 12, device))
    assert {r.implementation for r in rows if r.against} == {"auto", "eager", "compiled"}
    assert all(r.peak_memory for r in rows)
