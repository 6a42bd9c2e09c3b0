"""Faults around a GPU: each gives a clear error, and what comes next is right."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import maxk
from maxk.core.errors import TrainingError
from maxk.train.config import TrainConfig
from maxk.train.loop import Trainer

pytestmark = pytest.mark.gpu

NODES, WIDTH, K = 400, 256, 32


def problem(device: str = "cuda", nodes: int = NODES) -> tuple[maxk.Graph, Tensor]:
    g = torch.Generator().manual_seed(0)
    edges = torch.randint(nodes, (2, 20 * nodes), generator=g)
    x = torch.randn(nodes, WIDTH, generator=g)
    return maxk.Graph.from_edge_index(edges, nodes).to(device), x.to(device)


def step(graph: maxk.Graph, x: Tensor) -> tuple[Tensor, Tensor]:
    """Forward and backward; repeatable bit by bit in deterministic mode."""
    leaf = x.clone().requires_grad_()
    y = maxk.aggregate(graph, maxk.maxk(leaf, K), "mean")
    y.cos().sum().backward()
    assert leaf.grad is not None
    return y.detach(), leaf.grad


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def still_right() -> None:
    """The context serves the next call, and its numbers are those of the CPU."""
    y, grad = step(*problem())
    torch.cuda.synchronize()
    want_y, want_grad = step(*problem("cpu"))
    torch.testing.assert_close(y.cpu(), want_y, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grad.cpu(), want_grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [NODES, -1, 2**31 - 1, -(2**31), 2**40])
@pytest.mark.parametrize("end", [0, 1], ids=["source", "target"])
def test_bad_ids_never_reach_a_kernel(bad: int, end: int) -> None:
    edges = torch.zeros(2, 5, dtype=torch.int64, device="cuda")
    edges[end, 3] = bad
    x = torch.ones(NODES, WIDTH, device="cuda")
    for call in (
        lambda: maxk.Graph.from_edge_index(edges, NODES),
        lambda: maxk.aggregate(edges, maxk.maxk(x, K), "sum"),
    ):
        with pytest.raises(ValueError, match=rf"id {bad} at position 3.*ids 0\.\.{NODES - 1}"):
            call()
    still_right()


@pytest.mark.parametrize(
    ("width", "dtype", "bad"),
    [(10, torch.uint8, 10), (10, torch.uint8, 255), (300, torch.int16, -1),
     (300, torch.int16, 300), (40_000, torch.int32, 2**31 - 1)],
)  # fmt: skip
def test_bad_columns_never_reach_a_kernel(width: int, dtype: torch.dtype, bad: int) -> None:
    columns = torch.zeros(3, 1, dtype=dtype, device="cuda")
    columns[2] = bad
    with pytest.raises(ValueError, match=rf"columns must lie in .*{width - 1}\], row 2 .*{bad}"):
        maxk.CBSR(torch.ones(3, 1, device="cuda"), columns, width)
    still_right()


def test_mixed_devices_are_both_named() -> None:
    graph, x = problem()
    h = maxk.maxk(x, K)
    with pytest.raises(ValueError, match="features and graph must be on one device, got cpu and c"):
        maxk.aggregate(graph, x.cpu(), "sum")
    with pytest.raises(ValueError, match="features and graph must be on one device, got cuda:0 an"):
        maxk.aggregate(graph.to("cpu"), h, "sum")
    with pytest.raises(ValueError, match="values and columns must be on one device, got cuda:0 an"):
        maxk.CBSR(h.values, h.columns.cpu(), WIDTH)
    with pytest.raises(ValueError, match=r"edge_weight.*cpu"):
        maxk.Graph.from_edge_index(torch.zeros(2, 1, dtype=torch.int64).cuda(), 1, torch.ones(1))
    with pytest.raises(ValueError, match="needs operands on cuda, got cpu"):
        maxk.maxk(x.cpu(), K, implementation="cuda")
    with pytest.raises(ValueError, match="needs operands on cpu, got cuda"):
        maxk.maxk(x, K, implementation="cpu")
    still_right()


@contextmanager
def no_more_memory(spare: int) -> Iterator[None]:
    """Lets torch take ``spare`` bytes beyond what is in use."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(
        min(1.0, (torch.cuda.memory_reserved() + spare) / total)
    )
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


@pytest.mark.parametrize("spare", [0, 4 << 20, 24 << 20, 60 << 20])
def test_out_of_memory_inside_a_step_leaves_the_next_one_right(spare: int) -> None:
    graph, x = problem(nodes=40_000)
    graph.prepare("mean")
    want = step(graph, x)
    with no_more_memory(spare), pytest.raises(torch.OutOfMemoryError):
        step(graph, x)
    got = step(graph, x)
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


def test_out_of_memory_in_training_is_a_sentence_and_the_next_epoch_is_right() -> None:
    config = TrainConfig(
        dataset="synthetic:nodes=30000,degree=6,communities=4,features=64", hidden=256, k=32,
        layers=2, epochs=4, dropout=0.5, deterministic=True, device="cuda", cuda_graph=False,
    )  # fmt: skip
    whole, cut = Trainer(config), Trainer(config)
    whole.fit()
    cut.train_epoch()
    cut.train_epoch()
    with no_more_memory(8 << 20), pytest.raises(TrainingError, match="memory"):
        cut.train_epoch()
    cut.fit()
    assert [e.loss for e in cut.history] == [e.loss for e in whole.history]
    for ours, theirs in zip(cut.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_two_threads_at_once() -> None:
    graph, x = problem()
    inputs = [x, x.flip(0).contiguous()]
    want = [step(graph, each) for each in inputs]
    got: list[list[tuple[Tensor, Tensor]]] = [[], []]
    start = threading.Barrier(2)

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            start.wait()
            for _ in range(20):
                got[number].append(step(graph, inputs[number]))
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in (0, 1):
        assert len(got[number]) == 20
        for y, grad in got[number]:
            assert torch.equal(y, want[number][0])
            assert torch.equal(grad, want[number][1])


def test_two_streams_in_turn() -> None:
    graph, x = problem()
    inputs = [x, x.flip(0).contiguous()]
    want = [step(graph, each) for each in inputs]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    got: list[tuple[int, tuple[Tensor, Tensor]]] = []
    for turn in range(20):
        with torch.cuda.stream(streams[turn % 2]):
            got.append((turn % 2, step(graph, inputs[turn % 2])))
    torch.cuda.synchronize()
    for number, (y, grad) in got:
        assert torch.equal(y, want[number][0])
        assert torch.equal(grad, want[number][1])


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=False, env={**os.environ, **environment},
    )  # fmt: skip


FORK = """
import os, sys, torch, maxk
maxk.nn, maxk.aggregate
if {first}:
    torch.ones(1, device="cuda")
child = os.fork()
try:
    edges = torch.tensor([[0, 1], [1, 2]], device="cuda")
    y = maxk.aggregate(edges, maxk.maxk(torch.ones(3, 64, device="cuda"), 4), "sum")
    sys.stdout.write(str(int(y.sum())) + "\\n")  # in one piece, beside the other process's
except RuntimeError as error:
    sys.stdout.write(str(error).splitlines()[0] + "\\n")
sys.stdout.flush()
if child:
    os.waitpid(child, 0)
else:
    os._exit(0)
"""


def test_fork_after_import_serves_both() -> None:
    done = run(FORK.format(first=False))
    assert done.stdout.split() == ["8", "8"], done.stderr


def test_fork_after_cuda_has_started_is_refused_by_name() -> None:
    done = run(FORK.format(first=True))
    assert sorted(done.stdout.splitlines())[0] == "8", done.stderr
    assert "Cannot re-initialize CUDA in forked subprocess" in done.stdout


SHARED = """
import torch, maxk
g = torch.Generator().manual_seed(0)
edges = torch.randint(50, (2, 600), generator=g)
x = torch.randn(50, 96, generator=g)
results = []
for device in ("cuda", "cpu"):
    graph = maxk.Graph.from_edge_index(edges, 50).to(device)
    results.append(maxk.aggregate(graph, maxk.maxk(x.to(device), 12), "mean").cpu())
torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
print("right")
"""


@pytest.mark.parametrize("state", ["empty", "corrupted", "read-only"])
def test_processes_share_the_kernel_cache(tmp_path: Path, state: str) -> None:
    cache = tmp_path / "cache"
    environment = {**os.environ, "MAXK_CACHE_DIR": str(cache)}
    if state == "corrupted":
        assert run(SHARED, MAXK_CACHE_DIR=str(cache)).stdout.strip() == "right"
        entries = sorted((cache / "kernels").glob("*.cubin"))
        assert entries
        for entry in entries:
            entry.write_bytes(entry.read_bytes()[:-100] + bytes(100))
    if state == "read-only":
        # A file where the folder should be: not even root can write below it.
        cache.write_text("")
    children = [
        subprocess.Popen(
            [sys.executable, "-c", SHARED], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for _ in range(4)
    ]  # fmt: skip
    for child in children:
        out, error = child.communicate(timeout=300)
        assert out.strip() == "right", error
    if state != "read-only":
        names = {path.suffix for path in (cache / "kernels").iterdir()}
        assert names == {".cubin", ".json"}


def test_the_same_seed_gives_the_same_bits_in_new_processes() -> None:
    code = """
import hashlib, torch
from maxk.train.config import TrainConfig
from maxk.train.loop import Trainer
trainer = Trainer(TrainConfig(
    dataset="synthetic:nodes=2000,degree=8,communities=4,features=32", hidden=64, k=8, layers=2,
    epochs=6, dropout=0.5, deterministic=True, device="cuda",
))
trainer.fit()
weights = b"".join(t.cpu().numpy().tobytes() for t in trainer.model.state_dict().values())
print(hashlib.sha256(weights).hexdigest())
"""
    runs = [run(code, CUBLAS_WORKSPACE_CONFIG=":4096:8") for _ in range(2)]
    assert runs[0].returncode == 0, runs[0].stderr
    assert runs[0].stdout == runs[1].stdout


def test_training_on_the_gpu_follows_the_cpu() -> None:
    config = TrainConfig(
        dataset="synthetic:nodes=500,degree=6,communities=3,features=16", hidden=32, k=8, layers=2,
        epochs=5, dropout=0.0, precision="highest", device="cuda",
    )  # fmt: skip
    losses = []
    for device in ("cuda", "cpu"):
        trainer = Trainer(replace(config, device=device))
        trainer.fit()
        losses.append([epoch.loss for epoch in trainer.history])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
