"""Streams, capture and other devices: the right answer wherever torch says to run."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from maxk.graph.adjacency import Adjacency
from maxk.graph.csr import from_edges

pytestmark = pytest.mark.gpu


def problem(device: str = "cuda") -> tuple[Adjacency, Tensor]:
    g = torch.Generator().manual_seed(0)
    edges = torch.randint(500, (2, 9000), generator=g)
    x = torch.randn(500, 256, generator=g)
    return Adjacency(from_edges(edges.to(device), 500, 500, keep_order=False)), x.to(device)


def chain(adjacency: Adjacency, x: Tensor) -> tuple[Tensor, Tensor]:
    """MaxK, forward, backward."""
    from maxk.ops.maxk import cuda as maxk
    from maxk.ops.spgemm import cuda as spgemm
    from maxk.ops.sspmm import cuda as sspmm

    values, columns = maxk.select(x, 32)
    y = spgemm.spgemm(adjacency, None, values, columns, 256)
    return y, sspmm.sspmm(adjacency, None, y, columns)


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_capture(precision: str) -> None:
    torch.set_float32_matmul_precision(precision)
    try:
        adjacency, x = problem()
        static = x.clone()
        chain(adjacency, static)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y, g = chain(adjacency, static)
        static.copy_(x.flip(0))
        graph.replay()
        expected_y, expected_g = chain(adjacency, x.flip(0).contiguous())
        assert torch.equal(y, expected_y)
        torch.testing.assert_close(g, expected_g)
    finally:
        torch.set_float32_matmul_precision("highest")


def test_side_stream() -> None:
    adjacency, x = problem()
    expected, _ = chain(adjacency, x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late = x * 1.0  # written after the sleep: another stream would read it too early
        y, _ = chain(adjacency, late)
    stream.synchronize()
    assert torch.equal(y, expected)


def test_new_thread() -> None:
    adjacency, x = problem()
    expected, _ = chain(adjacency, x)
    got: list[Tensor] = []
    thread = threading.Thread(target=lambda: got.append(chain(adjacency, x)[0]))
    thread.start()
    thread.join()
    assert torch.equal(got[0], expected)


def test_no_synchronisation() -> None:
    adjacency, x = problem()
    chain(adjacency, x)
    torch.cuda.set_sync_debug_mode("error")
    try:
        chain(adjacency, x)
        chain(Adjacency(adjacency.csr), x)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.multigpu
def test_second_device() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    expected, _ = chain(*problem("cuda:0"))
    y, _ = chain(*problem("cuda:1"))
    assert y.device.index == 1
    assert torch.cuda.current_device() == 0
    assert torch.equal(y.cpu(), expected.cpu())
