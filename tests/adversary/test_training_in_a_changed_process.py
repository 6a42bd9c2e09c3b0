"""What a process sets for itself (defaults, modes, random numbers, threads) changes no run."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from maxk.data.dataset import Dataset
from maxk.graph.graph import Graph
from maxk.train import isolation
from maxk.train.config import TrainConfig
from maxk.train.loop import Trainer

NODES = 24
CONFIG = TrainConfig(hidden=8, k=4, layers=2, epochs=3, device="cpu", dropout=0.5)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def ring(sparse: bool = False) -> Dataset:
    nodes = torch.arange(NODES)
    index = torch.stack([nodes, (nodes + 1) % NODES])
    graph = Graph.from_edge_index(torch.cat([index, index.flip(0)], dim=1), NODES)
    x = torch.randn(NODES, 6, generator=torch.Generator().manual_seed(0))
    masks = [nodes % 3 == part for part in range(3)]
    x = x.to_sparse_csr() if sparse else x
    return Dataset("ring", graph, x, (nodes // 3) % 2, *masks, num_classes=2)


def trained(config: TrainConfig = CONFIG, data: Dataset | None = None) -> list[Any]:
    """All numbers of a run: losses, scores, weights."""
    trainer = Trainer(config, data or ring())
    trainer.fit()
    logits = trainer.predict()
    numbers: list[Any] = [(e.loss, e.train, e.val, e.test) for e in trainer.history]
    numbers += [t.tolist() for t in trainer.model.state_dict().values()]
    return [*numbers, logits.tolist(), logits.dtype, str(logits.device)]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def default_device(name: str) -> Iterator[None]:
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


STATES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "default device meta": lambda: default_device("meta"),
    "in the context of a device": lambda: torch.device("meta"),
    "default dtype float64": lambda: default_dtype(torch.float64),
    "default dtype float16": lambda: default_dtype(torch.float16),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


NETWORKS = [("sage", "maxk"), ("gcn", "relu"), ("gin", "dropout-relu"), ("gcn", "fatrelu")]


@pytest.mark.parametrize(("model", "nonlinearity"), NETWORKS)
@pytest.mark.parametrize("state", STATES)
def test_a_run_is_the_same_in_any_state_of_the_process(model, nonlinearity, state) -> None:
    config = replace(CONFIG, model=model, nonlinearity=nonlinearity, norm="batch")
    expected = trained(config)
    data = ring()
    with STATES[state]():
        found = trained(config, data)
    assert found == expected


@pytest.mark.parametrize("sparse", [False, True])
def test_data_and_a_trainer_made_in_inference_mode_train(sparse) -> None:
    expected = trained(CONFIG, ring(sparse))
    with torch.inference_mode():
        trainer = Trainer(CONFIG, ring(sparse))
    trainer.fit()
    assert [(e.loss, e.train, e.val, e.test) for e in trainer.history] == expected[: CONFIG.epochs]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("model", ["sage", "gcn", "gin"])
def test_scores_in_inference_mode_leave_a_trainer_that_trains(device, sparse, model) -> None:
    config = replace(CONFIG, device=device, model=model, deterministic=device == "cuda")
    expected = Trainer(config, ring(sparse))
    trainer = Trainer(config, ring(sparse))
    with torch.inference_mode():
        trainer.evaluate()
        trainer.predict()
        state = trainer.state()
        trainer.load_state(state)
    for _ in range(3):
        record = trainer.train_epoch()
        assert record.loss == expected.train_epoch().loss


@contextmanager
def drawing() -> Iterator[None]:
    """Another thread draws random numbers all the time."""
    stop = threading.Event()

    def draw() -> None:
        while not stop.is_set():
            torch.rand(3)
            time.sleep(1e-4)  # hands the interpreter over, so that the run goes on

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("nonlinearity", ["maxk", "dropout-relu"])
def test_numbers_that_other_threads_draw_change_no_run(nonlinearity) -> None:
    config = replace(CONFIG, epochs=5, nonlinearity=nonlinearity)
    expected = trained(config)
    with drawing():
        for _ in range(2):
            assert trained(config) == expected


def test_a_run_draws_nothing_from_the_generator_of_the_process() -> None:
    torch.manual_seed(7)
    drawn = [torch.rand(1).item() for _ in range(4)]
    torch.manual_seed(7)
    found = [torch.rand(1).item()]
    trainer = Trainer(CONFIG, ring())
    found.append(torch.rand(1).item())
    trainer.fit(on_epoch=lambda epoch: found.append(torch.rand(1).item()) if epoch.epoch < 3 else 0)
    assert found == drawn


def test_what_a_thread_draws_during_a_run_is_what_it_would_draw_without_one() -> None:
    """A generator that is set back after an epoch would repeat its numbers."""
    trainer = Trainer(replace(CONFIG, epochs=10), ring())
    stop, drawn = threading.Event(), []

    def draw() -> None:
        while not stop.is_set():
            drawn.append(float(torch.rand(1)))
            time.sleep(1e-4)

    thread = threading.Thread(target=draw)
    torch.manual_seed(3)
    thread.start()
    trainer.fit()
    stop.set()
    thread.join()
    torch.manual_seed(3)
    assert drawn == [float(torch.rand(1)) for _ in drawn]


@pytest.mark.parametrize("device", DEVICES)
def test_two_trainers_in_threads_give_the_numbers_of_each_alone(device) -> None:
    configs = [
        replace(CONFIG, device=device, epochs=12, precision="highest", deterministic=True),
        replace(CONFIG, device=device, epochs=12, precision="medium", seed=1),
        replace(CONFIG, device=device, epochs=12, model="gin", deterministic=True, seed=2),
    ]
    # On a GPU sums are repeatable in deterministic runs only.
    compared = [c for c in configs if device == "cpu" or c.deterministic]
    expected = {c.seed: trained(c) for c in compared}
    found: dict[int, Any] = {}
    # A thread whose first operation runs while another one is deterministic, outside of any
    # trainer, keeps torch's number of threads of that moment.
    data = ring()

    def work(config: TrainConfig) -> None:
        found[config.seed] = trained(config, data)

    threads = [threading.Thread(target=work, args=(c,)) for c in configs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {seed: found[seed] for seed in expected} == expected
    assert len(found) == len(configs)


def globals_of_torch() -> tuple[Any, ...]:
    return (
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_rng_state().tolist(),
    )


@pytest.mark.parametrize("state", [*STATES, "nothing set"])
@pytest.mark.parametrize("fails", [False, True])
def test_every_call_leaves_the_state_of_torch_as_it_was(state, fails, monkeypatch) -> None:
    data = ring()
    config = replace(CONFIG, precision="medium", deterministic=True)
    if fails:
        monkeypatch.setattr("maxk.train.metrics.score", _fail)
        monkeypatch.setattr("maxk.train.metrics.loss", _fail)
    with STATES.get(state, nullcontext)():
        before = globals_of_torch()
        trainer = Trainer(config, data)
        assert globals_of_torch() == before
        for call in (trainer.train_epoch, trainer.evaluate, trainer.predict, trainer.fit):
            try:
                call()
            except ZeroDivisionError:
                assert fails
            assert globals_of_torch() == before
        state_of_run = trainer.state()
        trainer.load_state(state_of_run)
        assert globals_of_torch() == before
    if fails:
        assert trainer.epoch == 0


def _fail(*given: object) -> float:
    raise ZeroDivisionError


def test_a_fork_while_another_thread_trains_is_not_stopped() -> None:
    """The lock that the other thread holds is not the child's."""
    inside, leave = threading.Event(), threading.Event()

    def train() -> None:
        with isolation.one_at_a_time():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=train)
    thread.start()
    inside.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        with isolation.one_at_a_time():
            os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    leave.set()
    thread.join()
    assert code == 0
