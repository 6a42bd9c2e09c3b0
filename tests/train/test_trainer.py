from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from maxk.core.errors import CheckpointError, CompileError, DataError, DeviceError, TrainingError
from maxk.data.dataset import Dataset
from maxk.graph.graph import Graph
from maxk.train import advice
from maxk.train.advice import forecast
from maxk.train.config import TrainConfig
from maxk.train.loop import Trainer
from maxk.train.setup import resolve_device

NODES = 24
SMALL = TrainConfig(hidden=8, k=4, layers=2, epochs=4, device="cpu", lr=0.01)


def ring(y: Tensor, *, classes: int, metric: str = "accuracy", edges: bool = True) -> Dataset:
    """A ring both ways, features that carry the label, and every third node in each split."""
    nodes = torch.arange(NODES)
    index = torch.stack([nodes, (nodes + 1) % NODES])
    index = torch.cat([index, index.flip(0)], dim=1) if edges else index[:, :0]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NODES, 6, generator=generator)
    x[:, 0] += y.float() if y.dim() == 1 else y[:, 0]
    masks = [nodes % 3 == part for part in range(3)]
    graph = Graph.from_edge_index(index, NODES)
    return Dataset("ring", graph, x, y, *masks, num_classes=classes, metric=metric)  # type: ignore[arg-type]


@pytest.fixture
def data() -> Dataset:
    return ring((torch.arange(NODES) // 3) % 2, classes=2)


def test_a_trainer_learns_and_keeps_the_best_validation_epoch(data: Dataset) -> None:
    trainer = Trainer(replace(SMALL, epochs=30, dropout=0.0), data)
    seen: list[int] = []
    summary = trainer.fit(on_epoch=lambda epoch: seen.append(epoch.epoch))
    assert seen == list(range(1, 31))
    assert trainer.history[-1].loss < trainer.history[0].loss / 2
    best = max(e.val for e in trainer.history)
    first = next(e for e in trainer.history if e.val == best)
    assert (summary["val"], summary["test"]) == (best, first.test)
    assert summary["best_epoch"] == first.epoch
    assert summary["test_last"] == trainer.history[-1].test
    assert trainer.best is not None
    trainer.load_weights(trainer.best.weights)
    assert trainer.evaluate()["val"] == pytest.approx(best)


@pytest.mark.parametrize("model", ["sage", "gcn", "gin"])
@pytest.mark.parametrize("nonlinearity", ["maxk", "relu"])
def test_every_model_trains(data: Dataset, model: str, nonlinearity: str) -> None:
    config = replace(SMALL, model=model, nonlinearity=nonlinearity, epochs=2)  # type: ignore[arg-type]
    summary = Trainer(config, data).fit()
    assert summary["k"] == (4 if nonlinearity == "maxk" else None)
    assert summary["epochs"] == 2


def test_the_time_of_an_epoch_is_split(data: Dataset) -> None:
    summary = Trainer(SMALL, data).fit()
    assert summary["seconds_select"] > 0
    assert summary["seconds_aggregate"] > 0
    parts = sum(summary[f"seconds_{part}"] for part in ("select", "aggregate", "rest"))
    assert summary["seconds_per_epoch"] <= parts * (1 + 1e-9)
    assert summary["peak_memory"] > 0


def test_multi_label_data_trains_with_one_output_a_label() -> None:
    y = torch.stack([torch.arange(NODES) % 2, torch.arange(NODES) // 3 % 2, torch.ones(NODES)], 1)
    for metric in ("micro_f1", "roc_auc"):
        trainer = Trainer(SMALL, ring(y.float(), classes=3, metric=metric))
        assert trainer.predict().shape == (NODES, 3)
        assert 0 <= trainer.fit()["test"] <= 1
        assert trainer.summary()["metric"] == metric


def test_a_graph_without_edges_trains(data: Dataset) -> None:
    bare = ring(data.y, classes=2, edges=False)
    for model in ("sage", "gcn", "gin"):
        summary = Trainer(replace(SMALL, model=model, epochs=1), bare).fit()  # type: ignore[arg-type]
        assert math.isfinite(summary["test"])


def test_a_split_without_nodes_is_an_error(data: Dataset) -> None:
    empty = replace(data, val_mask=torch.zeros(NODES, dtype=torch.bool))
    with pytest.raises(DataError, match="ring: the val split holds no nodes"):
        Trainer(SMALL, empty)


def test_patience_stops_early(data: Dataset) -> None:
    trainer = Trainer(replace(SMALL, epochs=500, patience=3), data)
    summary = trainer.fit()
    assert summary["epochs"] == summary["best_epoch"] + 3 < 500


def test_a_loss_that_is_no_longer_finite_stops_with_a_sentence(data: Dataset) -> None:
    trainer = Trainer(SMALL, replace(data, x=data.x * 1e38 * 1e3))
    with pytest.raises(TrainingError, match=r"the loss is nan in epoch 1, .* smaller --lr"):
        trainer.fit()
    assert trainer.epoch == 0
    with pytest.raises(TrainingError, match="no epoch was trained"):
        trainer.summary()


def test_a_compiler_that_fails_is_one_sentence(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(module: object, inputs: object) -> None:
        raise RuntimeError("no C++ compiler\nand much more")

    compile_model = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compile_model(model, backend=refuse))
    with pytest.raises(CompileError) as caught:
        Trainer(replace(SMALL, compile=True), data).fit()
    assert "--compile failed: " in str(caught.value)
    assert "no C++ compiler" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate"),
        MemoryError(),
    ],
)
def test_too_little_memory_is_advice(
    data: Dataset, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def full(self: Trainer) -> float:
        raise error

    monkeypatch.setattr(Trainer, "_train", full)
    with pytest.raises(TrainingError) as caught:
        Trainer(SMALL, data).fit()
    words = str(caught.value)
    assert re.match(
        r"this run does not fit in the memory of cpu: it needs about \d+ KiB; try "
        r"--k 2 \(about \d+ KiB\), --hidden 4 \(about \d+ KiB\) or --layers 1 \(about",
        words,
    ), words
    with pytest.raises(TrainingError, match=r"; try --nonlinearity maxk --k 1 \(about "):
        Trainer(replace(SMALL, nonlinearity="relu"), data).fit()


def test_another_error_is_not_taken_for_a_full_memory(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(self: Trainer) -> float:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(Trainer, "_train", wrong)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        Trainer(SMALL, data).fit()


def test_the_need_is_said_beside_what_is_free(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(advice, "free_memory", lambda device: 1 << 40)
    assert re.fullmatch(
        r"memory: about \d+ KiB of 1024.0 GiB free on cpu", forecast(SMALL, data, cpu)
    )
    monkeypatch.setattr(advice, "free_memory", lambda device: 5)
    tight = forecast(SMALL, data, cpu)
    assert "of 5 B free on cpu, which may not be enough: try --k 2 (about" in tight
    monkeypatch.setattr(advice, "free_memory", lambda device: None)
    assert re.fullmatch(r"memory: about \d+ KiB", forecast(SMALL, data, cpu))


def same(a: Trainer, b: Trainer) -> bool:
    mine, other = a.model.state_dict(), b.model.state_dict()
    losses = [e.loss for e in a.history] == [e.loss for e in b.history]
    return losses and all(torch.equal(mine[name], other[name]) for name in mine)


def test_a_seed_settles_every_bit_whatever_else_draws_numbers(data: Dataset) -> None:
    config = replace(SMALL, dropout=0.5)
    first = Trainer(config, data)
    first.fit()
    torch.manual_seed(99)
    second = Trainer(config, data)
    before = torch.get_rng_state()
    second.fit(on_epoch=lambda epoch: torch.rand(3))
    assert same(first, second)
    other = Trainer(replace(config, seed=2), data)
    other.fit()
    assert not same(first, other)
    torch.set_rng_state(before)
    Trainer(config, data).fit()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_state_continues_bit_for_bit(data: Dataset) -> None:
    config = replace(SMALL, dropout=0.5, epochs=6)
    whole = Trainer(config, data)
    whole.fit()
    half = Trainer(replace(config, epochs=3), data)
    half.fit()
    rest = Trainer(config, data)
    rest.load_state(half.state())
    assert rest.epoch == 3
    rest.fit()
    assert same(whole, rest)
    assert rest.summary()["best_epoch"] == whole.summary()["best_epoch"]


def test_a_state_is_a_copy(data: Dataset) -> None:
    """Two trainers that start from one state do not share its moments."""
    first = Trainer(SMALL, data)
    first.train_epoch()
    state = first.state()
    kept = [moment.clone() for moment in moments(state)]
    first.train_epoch()
    assert all(torch.equal(a, b) for a, b in zip(kept, moments(state), strict=True))


def moments(state: dict[str, Any]) -> list[Tensor]:
    return [entry["exp_avg"] for entry in state["optimizer"]["state"].values()]


def test_a_state_of_other_data_or_another_model_is_refused(data: Dataset) -> None:
    trainer = Trainer(SMALL, data)
    trainer.train_epoch()
    state = trainer.state()
    bare = ring(data.y, classes=2, edges=False)
    with pytest.raises(CheckpointError, match="made with edges 48, this run has 0"):
        Trainer(SMALL, bare).load_state(state)
    with pytest.raises(CheckpointError, match="weights of another model"):
        Trainer(replace(SMALL, hidden=16), data).load_state(state)
    with pytest.raises(CheckpointError, match="do not fit the model"):
        Trainer(replace(SMALL, hidden=16), data).load_weights(state["model"])


def test_torch_settings_are_put_back(data: Dataset) -> None:
    before = torch.get_float32_matmul_precision()
    Trainer(replace(SMALL, precision="medium", deterministic=True, epochs=1), data).fit()
    assert torch.get_float32_matmul_precision() == before
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_gpu_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")
    with pytest.raises(DeviceError, match="--device cuda:1 asks for a GPU"):
        resolve_device("cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(DeviceError, match=r"in cuda:0 \.\. cuda:0, got cuda:1"):
        resolve_device("cuda:1")


GPU = replace(SMALL, device="cuda", epochs=12, hidden=32, k=8, dropout=0.5, deterministic=True)


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["sage", "gcn", "gin"])
@pytest.mark.parametrize("precision", ["high", "medium"])
def test_a_cuda_graph_changes_no_bit(data: Dataset, model: str, precision: str) -> None:
    config = replace(GPU, model=model, precision=precision)  # type: ignore[arg-type]
    replayed, eager = Trainer(config, data), Trainer(replace(config, cuda_graph=False), data)
    replayed.fit()
    eager.fit()
    assert replayed._captured is not None and eager._captured is None
    assert same(replayed, eager)
    assert [e.val for e in replayed.history] == [e.val for e in eager.history]
    # The masks of dropout differ from step to step, so the loss does.
    assert len({e.loss for e in replayed.history}) == config.epochs


@pytest.mark.gpu
def test_a_run_with_a_cuda_graph_continues_bit_for_bit(data: Dataset) -> None:
    whole = Trainer(GPU, data)
    whole.fit()
    half = Trainer(replace(GPU, epochs=7), data)
    half.fit()
    rest = Trainer(GPU, data)
    rest.load_state(half.state())
    rest.fit()
    assert same(whole, rest)
    # Also where the graph was there before the state.
    half.load_state(half.state())
    half.config = GPU
    half.fit()
    assert same(whole, half)


@pytest.mark.gpu
def test_the_split_comes_from_the_epochs_before_the_graph(data: Dataset) -> None:
    trainer = Trainer(GPU, data)
    summary = trainer.fit()
    known = [e.epoch for e in trainer.history if e.seconds_aggregate is not None]
    assert known == [3, 4, 5]
    assert summary["seconds_select"] > 0 and summary["seconds_aggregate"] > 0


@pytest.mark.gpu
def test_a_state_of_the_cpu_continues_on_a_gpu(data: Dataset) -> None:
    half = Trainer(replace(SMALL, epochs=2), data)
    half.fit()
    rest = Trainer(replace(SMALL, epochs=9, device="cuda"), data)
    rest.load_state(half.state())
    rest.fit()
    assert rest._captured is not None
    assert math.isfinite(rest.history[-1].loss)


@pytest.mark.gpu
def test_sparse_features_train_without_a_graph(data: Dataset) -> None:
    sparse = replace(data, x=data.x.to_sparse_csr())
    trainer = Trainer(GPU, sparse)
    trainer.fit()
    assert trainer._captured is None
