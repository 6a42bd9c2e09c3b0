from __future__ import annotations

import pytest
import torch
from torch import nn

from maxk.data.load import load
from maxk.nn.models import GraphSAGE
from maxk.ops.dispatch import Recorder
from maxk.train.config import TrainConfig
from maxk.train.loop import Trainer, median
from maxk.train.step import Step, Target

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def step_of(device: str, seed: int = 0) -> Step:
    data = load("synthetic:nodes=60,degree=4,communities=3,features=6").to(device)
    torch.manual_seed(seed)
    model = GraphSAGE(6, 8, 2, 3, k=4).to(device)
    nodes = data.train_mask.nonzero()[:, 0]
    return Step(model, lambda: model(data.x, data.graph), Target(nodes, data.y[nodes]), lr=0.01)


@pytest.mark.parametrize("device", DEVICES)
def test_a_measured_step_is_the_same_step(device: str) -> None:
    torch.use_deterministic_algorithms(True)
    plain, measured = step_of(device), step_of(device)
    for _ in range(3):
        loss, parts = measured.measured()
        assert torch.equal(plain(), loss)
        assert list(parts) == ["select", "forward", "backward", "dense", "optimiser"]
        assert all(seconds > 0 for seconds in parts.values())
    both = zip(plain.model.parameters(), measured.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in both)


def test_the_parts_are_medians_in_milliseconds() -> None:
    step = step_of("cpu")
    step.parts = lambda: {"select": values.pop()}  # type: ignore[method-assign]
    values = [5.0, 1.0, 3.0]
    assert step.split() == {"select": 3.0}


@pytest.mark.parametrize("call", [lambda step: step(), lambda step: step.measured()[0]])
def test_a_loss_that_is_not_finite_updates_nothing(call) -> None:
    step = step_of("cpu")
    first = next(step.model.parameters())
    with torch.no_grad():
        first[0, 0] = float("nan")
    before = [p.detach().clone() for p in step.model.parameters()]
    assert not call(step).isfinite()
    after = step.model.parameters()
    assert all(torch.equal(a, b) for a, b in zip(before[1:], list(after)[1:], strict=True))
    assert not step.optimizer.state


def test_gradients_leave_the_model_as_it_was() -> None:
    step = step_of("cpu")
    before = [p.detach().clone() for p in step.model.parameters()]
    loss, grads = step.gradients()
    assert step.model.training
    assert torch.equal(loss, step.loss().detach())
    assert set(grads) == {name for name, _ in step.model.named_parameters()}
    assert all(torch.equal(a, b) for a, b in zip(before, step.model.parameters(), strict=True))


def test_the_trainer_makes_this_step() -> None:
    trainer = Trainer(TrainConfig(hidden=8, k=4, layers=1, epochs=2, device="cpu"))
    assert isinstance(trainer._step, Step)
    assert isinstance(trainer._step.model, nn.Module)
    record = trainer.train_epoch()
    assert record.seconds_select is not None and record.seconds_aggregate is not None
    assert 0 < record.seconds_select + record.seconds_aggregate < record.seconds


def test_a_norm_that_is_one_operation_with_maxk_is_part_of_select() -> None:
    record = Recorder({"maxk": 1.0, "norm_maxk": 2.0, "spgemm": 4.0, "sspmm": 8.0})
    assert (record.select, record.aggregate) == (3.0, 12.0)


def test_the_median_is_of_what_is_known() -> None:
    assert median([3.0, None, 1.0, 2.0]) == 2.0
    assert median([None]) is None
