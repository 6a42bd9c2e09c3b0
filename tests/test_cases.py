"""Faults that users of such libraries reported in public, each as the smallest input that shows it.

Each test bears the row it stands for; what a row needs beyond this file stands elsewhere:

    C04, C18  input from other libraries: tests/nn, tests/interop
    C06       seeds of a mini-batch, C28: need a neighbour sampler
    C10, C27  a second GPU: here, marked multigpu
    C11       memory checker: tests/device
    C20 (b)   here, marked huge
    C23       trained on a GPU, C24 and C29 in processes of their own: tests/cli, tests/train
    C26       with the default backend: tests/ops/test_registered.py
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import maxk
from graphs import star
from maxk.cli.main import main
from maxk.core.errors import DataError, DeviceError
from maxk.data.load import load
from maxk.graph.csr import check_indptr
from maxk.graph.schedule import build_schedule
from maxk.ops.spmm.reference import accumulation_dtype
from maxk.train import checkpoint, metrics
from maxk.train import run as runs
from maxk.train.config import TrainConfig
from maxk.train.folder import open_run, resumed_config
from maxk.train.loop import Trainer
from maxk.train.setup import resolve_device

NAN, INF = math.nan, math.inf
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)
every_format = pytest.mark.parametrize("compressed", [True, False], ids=["cbsr", "dense"])


def graph_of(pairs, nodes, weight=None, device="cpu"):
    edges = torch.tensor(pairs, dtype=torch.int64, device=device).reshape(-1, 2).t()
    return maxk.Graph.from_edge_index(edges, nodes, weight)


def leaf(rows, device, dtype=torch.float32):
    return torch.tensor(rows, dtype=dtype, device=device).requires_grad_()


def same(got: torch.Tensor, want) -> None:
    """Equal to the bit, where NaN equals NaN; the device and the sign of zero play no part."""
    want = torch.tensor(want, dtype=got.dtype)
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.detach().double().cpu(), want.double())


@dtypes
@every_format
def test_c01_isolated_node(implementation, device, dtype, compressed):
    junk = torch.full((3, 2), NAN, dtype=dtype, device=device)
    del junk
    graph = graph_of([(0, 1)], 3, device=device)
    x = leaf([[1, 2], [3, 4], [5, 6]], device, dtype)
    h = maxk.maxk(x, 2, implementation=implementation) if compressed else x
    y = maxk.aggregate(graph, h, "mean", implementation=implementation)
    y.sum().backward()
    same(y, [[0, 0], [1, 2], [0, 0]])
    same(x.grad, [[1, 1], [0, 0], [0, 0]])


@dtypes
@pytest.mark.parametrize("nodes", [4, 0])
def test_c02_empty_graph(implementation, device, dtype, nodes):
    graph = graph_of([], nodes, device=device)
    x = torch.ones(nodes, 2, dtype=dtype, device=device)
    with maxk.implementation(implementation):
        for h, reduce in itertools.product([x, maxk.maxk(x, 1), maxk.maxk(x, 2)], ["sum", "mean"]):
            same(maxk.aggregate(graph, h, reduce), [[0.0, 0.0]] * nodes or np.zeros((0, 2)))
        conv = maxk.nn.GCNConv(2, 3).to(device, dtype)
        y = conv(maxk.maxk(x, 2), graph)
        assert y.shape == (nodes, 3)
        torch.testing.assert_close(y, conv.lin(x) + conv.bias)
        y.sum().backward()


@pytest.mark.parametrize("model", ["sage", "gcn"])
def test_c02_empty_graph_on_the_command_line(tmp_path, monkeypatch, model):
    monkeypatch.chdir(tmp_path)
    part = np.arange(4) % 3
    np.savez(
        "bare.npz", edge_index=np.zeros((2, 0), np.int64), x=np.ones((4, 2), np.float32),
        y=np.array([0, 1, 0, 1]), train_mask=part == 0, val_mask=part == 1, test_mask=part == 2,
    )  # fmt: skip
    words = ["train", "--dataset", "bare.npz", "--model", model, "--hidden", "4", "--k", "2"]
    assert main([*words, "--epochs", "1", "--quiet"]) == 0


@dtypes
@every_format
def test_c03_self_loops(implementation, device, dtype, compressed):
    graph = graph_of([(0, 1), (1, 0), (0, 0)], 2, device=device)
    x = torch.tensor([[1.0], [3.0]], dtype=dtype, device=device)
    h = maxk.maxk(x, 1, implementation=implementation) if compressed else x
    y = maxk.aggregate(graph, h, "gcn", implementation=implementation)
    want = torch.tensor([[2.0], [2.0]], dtype=dtype, device=device)
    torch.testing.assert_close(y, want, rtol=0, atol=max(1e-6, 2 * torch.finfo(dtype).eps))
    assert graph.with_self_loops().num_edges == 4


@every_format
def test_c04_parallel_edges(implementation, device, compressed):
    pairs, x = [(0, 1), (0, 1)], torch.tensor([[2.0], [0.0]], device=device)
    h = maxk.maxk(x, 1, implementation=implementation) if compressed else x
    weight = leaf([0.5, 1.5], device)
    indptr = torch.tensor([0, 0, 2], device=device)
    indices = torch.tensor([0, 0], device=device)
    for plain, weighted in [
        (graph_of(pairs, 2, device=device), graph_of(pairs, 2, weight, device)),
        (maxk.Graph.from_csr(indptr, indices), maxk.Graph.from_csr(indptr, indices, weight)),
    ]:
        weight.grad = None
        same(maxk.aggregate(plain, h, "sum", implementation=implementation), [[0], [4]])
        same(maxk.aggregate(plain, h, "mean", implementation=implementation), [[0], [2]])
        y = maxk.aggregate(weighted, h, "sum", implementation=implementation)
        y[1].sum().backward()
        same(y, [[0], [4]])
        same(weight.grad, [2, 2])


UNSORTED = [((2, 0), 10.0), ((0, 1), 1.0), ((1, 0), 100.0)]


@every_format
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_c05_unsorted_edges(implementation, device, order, compressed):
    pairs, weights = zip(*[UNSORTED[i] for i in order], strict=True)
    weight = leaf(weights, device)
    x = torch.tensor([[1.0], [2], [3]], device=device)
    h = maxk.maxk(x, 1, implementation=implementation) if compressed else x
    graph = graph_of(pairs, 3, weight, device)
    y = maxk.aggregate(graph, h, "sum", implementation=implementation)
    y.sum().backward()
    same(y, [[230], [1], [0]])
    same(weight.grad, [[3, 1, 2][i] for i in order])


@pytest.mark.parametrize(("pair", "text"), [
    ((3, 0), r"source id 3 at position 1.*ids 0\.\.2"),
    ((-1, 0), r"source id -1 at position 1.*ids 0\.\.2"),
    ((0, 3), r"target id 3 at position 1.*ids 0\.\.2"),
    ((2**40, 0), rf"source id {2**40} at position 1.*ids 0\.\.2"),
])  # fmt: skip
def test_c06_bad_node_ids(implementation, device, pair, text):
    with pytest.raises(ValueError, match=text):
        graph_of([(0, 1), pair], 3, device=device)
    x = torch.ones(3, 1, device=device)
    edges = torch.tensor([(0, 1), pair], device=device).t().contiguous()
    with pytest.raises(ValueError, match=text):
        maxk.aggregate(edges, x, "sum", implementation=implementation)
    with pytest.raises(ValueError, match=r"source id 3 at position 0.*ids 0\.\.2"):
        maxk.Graph.from_csr(
            torch.tensor([0, 1], device=device), torch.tensor([3], device=device), num_src=3
        )
    # The process, and a GPU's context, still serve the next call.
    graph = graph_of([(0, 1)], 3, device=device)
    same(maxk.aggregate(graph, x, "sum", implementation=implementation), [[0], [1], [0]])


def test_c07_index_dtypes(implementation, device):
    pairs, weights = zip(*UNSORTED, strict=True)
    edges = torch.tensor(pairs, device=device).t()
    weight = torch.tensor(weights, device=device)
    h = maxk.maxk(torch.tensor([[1.0], [2], [3]], device=device), 1, implementation=implementation)
    rows = [torch.tensor([0, 2, 3, 3]), torch.tensor([2, 1, 0]), weight[[0, 2, 1]]]
    rows = [part.to(device) for part in rows]
    for graph in (
        maxk.Graph.from_edge_index(edges.int(), 3, weight),
        maxk.Graph.from_edge_index(edges.long(), 3, weight),
        maxk.Graph.from_csr(rows[0].long(), rows[1].int(), rows[2]),
        maxk.Graph.from_csr(rows[0].int(), rows[1].long(), rows[2]),
    ):
        same(
            maxk.aggregate(graph, h, "sum", implementation=implementation), [[230], [1], [0]]
        )  # the same bits
    with pytest.raises(TypeError, match=r"edge_index must hold int64 or int32.*got torch.float32"):
        maxk.Graph.from_edge_index(edges.float(), 3)
    with pytest.raises(TypeError, match=r"edge_index must hold int64 or int32.*got torch.float64"):
        maxk.aggregate(edges.double(), h, "sum", implementation=implementation)


def strided(kind: str, device: torch.device) -> torch.Tensor:
    """The rows [1, 4], [2, 5], [3, 6] as a view."""
    want = torch.tensor([[1.0, 4], [2, 5], [3, 6]], device=device)
    if kind == "transposed":
        return want.t().contiguous().t()
    big = torch.full((5, 5), 99.0, device=device)
    views = {"every-other": big[:3, ::2][:, :2], "offset": big[2:, 3:], "rows": big[::2, :2]}
    views[kind].copy_(want)
    return views[kind]


@pytest.mark.parametrize("kind", ["transposed", "every-other", "offset", "rows"])
def test_c08_strided_features(implementation, device, kind):
    graph = graph_of([(0, 1), (2, 1)], 3, device=device)
    view = strided(kind, device)
    for k, want in [(None, [4, 10]), (2, [4, 10]), (1, [0, 10])]:
        h = view if k is None else maxk.maxk(view, k, implementation=implementation)
        y = maxk.aggregate(graph, h, "sum", implementation=implementation)
        same(y, [[0, 0], want, [0, 0]])
    # Values and columns of CBSR, and an upstream gradient, may be views as well.
    columns = torch.tensor([[0, 1]], dtype=torch.uint8, device=device).expand(3, 2)
    values = view.detach().requires_grad_()
    y = maxk.aggregate(graph, maxk.CBSR(values, columns, 4), "sum", implementation=implementation)
    same(y, [[0] * 4, [4, 10, 0, 0], [0] * 4])
    y.backward(torch.tensor([[1.0], [2], [3]], device=device).expand(3, 4))
    same(values.grad, [[2, 2], [0, 0], [2, 2]])


@dtypes
@every_format
@pytest.mark.parametrize("leaves", [5000, 70_000])
def test_c09_dtypes_and_hubs(implementation, device, dtype, leaves, compressed):
    graph = star(leaves).to(device)
    x = torch.ones(leaves + 1, 1, dtype=dtype, device=device, requires_grad=True)
    h = maxk.maxk(x, 1, implementation=implementation) if compressed else x
    total = maxk.aggregate(graph, h, "sum", implementation=implementation)
    # Rounded once: 4992 in bfloat16; 70,000 lies above the largest float16.
    assert total[0].item() == torch.tensor(float(leaves)).to(dtype).item()
    mean = maxk.aggregate(graph, h, "mean", implementation=implementation)
    # cuSPARSE adds the scaled entries: 5,000 times the number next to 1 / 5,000.
    error = leaves * torch.finfo(accumulation_dtype(dtype)).eps if device.type == "cuda" else 0.0
    assert mean[0].item() == pytest.approx(1.0, abs=error)
    total[0].sum().backward()
    assert x.grad[0].item() == 0
    assert x.grad[1:].eq(1).all()


@every_format
def test_c09_double_stays_double(implementation, device, compressed):
    x = torch.tensor([[0.0], [1.0], [1e-9]], dtype=torch.float64, device=device)
    h = maxk.maxk(x, 1, implementation=implementation) if compressed else x
    y = maxk.aggregate(star(2).to(device), h, "sum", implementation=implementation)
    assert y[0].item() == 1.000000001


def test_c09_other_dtypes_are_refused(device):
    graph = graph_of([(0, 1)], 2, torch.ones(1, device=device), device)
    x = torch.ones(2, 1, device=device)
    with pytest.raises(TypeError, match=r"got torch\.int64"):
        maxk.aggregate(graph, x.long(), "sum")
    for dtype in (torch.float16, torch.float64):
        with pytest.raises(TypeError, match=f"share one dtype, got {dtype} and torch.float32"):
            maxk.aggregate(graph, maxk.maxk(x.to(dtype), 1), "sum")


@pytest.mark.multigpu
def test_c10_second_gpu():
    with torch.cuda.device(0):
        graph = graph_of([(0, 1), (1, 2)], 3, device="cuda:1")
        x = leaf([[1], [10], [100]], "cuda:1")
        y = maxk.aggregate(graph, maxk.maxk(x, 1), "sum")
        y.backward(torch.tensor([[5.0], [7], [11]], device="cuda:1"))
        assert y.device == torch.device("cuda:1")
        same(y, [[0], [1], [10]])
        same(x.grad, [[7], [11], [0]])
        with pytest.raises(ValueError, match="got cuda:0 and cuda:1"):
            maxk.aggregate(graph, torch.ones(3, 1, device="cuda:0"), "sum")


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="the device asked for exists")
def test_c10_a_gpu_that_is_not_there():
    with pytest.raises(DeviceError, match=r"--device cuda:1 "):
        resolve_device("cuda:1")


@dtypes
@pytest.mark.parametrize(("row", "columns", "output"), [
    ([1, NAN, 3, 2], {1, 2}, [0, NAN, 3, 0]),
    ([NAN] * 4, {0, 1}, [NAN, NAN, 0, 0]),
    ([INF, -INF, NAN, 0], {0, 2}, [INF, 0, NAN, 0]),
    ([INF, -INF, 1, 2], {0, 3}, [INF, 0, 0, 2]),
    ([-INF, -INF, -INF, -INF], {0, 1}, [-INF, -INF, 0, 0]),
    ([NAN, INF, NAN, NAN], {0, 2}, [NAN, 0, NAN, 0]),
])  # fmt: skip
def test_c11_nan_and_inf(implementation, device, dtype, row, columns, output):
    x = leaf([row], device, dtype)
    h = maxk.maxk(x, 2, implementation=implementation)
    assert set(h.columns[0].tolist()) == columns
    same(h.to_dense(), [output])
    h.values.sum().backward()
    same(x.grad, [[1.0 if c in columns else 0.0 for c in range(4)]])
    graph = graph_of([(0, 0)], 1, device=device)
    same(maxk.aggregate(graph, h.to_dense(), "sum", implementation=implementation), [output])
    same(maxk.aggregate(graph, h, "sum", implementation=implementation), [output])


@dtypes
@pytest.mark.parametrize(("row", "k", "columns"), [
    ([7, 7, 7, 7, 7], 2, {0, 1}),
    ([1, 5, 5, 0, 5], 2, {1, 2}),
    ([-0.0, 0.0, -1], 1, {0}),
    ([0.0, -0.0, -1], 1, {0}),
    ([-1, -0.0, 0.0], 2, {1, 2}),
])  # fmt: skip
def test_c12_ties(implementation, device, dtype, row, k, columns):
    x = leaf([row] * 5, device, dtype)
    for _ in range(20):
        h = maxk.maxk(x, k, implementation=implementation)
        assert h.columns.shape == (5, k)
        assert all(set(kept) == columns for kept in h.columns.tolist())
    h.values.sum().backward()
    same(x.grad, [[1.0 if c in columns else 0.0 for c in range(len(row))]] * 5)


@dtypes
def test_c13_k_equal_to_dim(implementation, device, dtype):
    x = leaf([[4, -1, 0, 2], [0, 0, 0, -3]], device, dtype)
    y = maxk.maxk(x, 4, implementation=implementation).to_dense()
    y.sum().backward()
    assert torch.equal(y, x)
    same(x.grad, [[1] * 4] * 2)


@pytest.mark.parametrize("call", [
    maxk.maxk, maxk.CBSR.from_dense, lambda x, k: maxk.nn.MaxK(k)(x),
    lambda x, k: maxk.nn.GraphSAGE(4, x.shape[1], 1, 2, k=k),
], ids=["maxk", "from_dense", "MaxK", "GraphSAGE"])  # fmt: skip
@pytest.mark.parametrize("k", [5, 0, -1, 2.5, True])
def test_c13_k_limits(call, k):
    error, text = (ValueError, r"k must lie in \[1, \d+\].*got k=") if type(k) is int else (
        TypeError, "k must be an int in .*got "
    )  # fmt: skip
    with pytest.raises(error, match=f"{text}{k}"):
        call(torch.ones(2, 4), k)


@pytest.mark.parametrize("k", ["0", "65", "2.5"])
def test_c13_k_on_the_command_line(capsys, k):
    # The data set does not exist: it is k that is named.
    assert main(["train", "--dataset", "nowhere.npz", "--hidden", "64", "--k", k]) == 2
    told = capsys.readouterr().err
    assert told.startswith("maxk: --k must ")
    assert k in told
    assert "nowhere" not in told


GUARD = 256


@pytest.fixture
def guards(monkeypatch):
    """Every ``torch.empty`` becomes the middle of a larger buffer; call it to check the edges."""
    empty, buffers = torch.empty, []

    def guarded(*size, **options):
        shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
        count = math.prod(shape)
        buffer = empty(count + 2 * GUARD, **options)
        buffer[:GUARD].view(torch.uint8).fill_(0xA5)
        buffer[GUARD + count :].view(torch.uint8).fill_(0xA5)
        buffers.append((buffer, count))
        return buffer[GUARD : GUARD + count].view(shape)

    def check() -> int:
        for buffer, count in buffers:
            assert buffer[:GUARD].view(torch.uint8).eq(0xA5).all()
            assert buffer[GUARD + count :].view(torch.uint8).eq(0xA5).all()
        return len(buffers)

    monkeypatch.setattr(torch, "empty", guarded)
    return check


@pytest.mark.parametrize("dim", [1, 31, 33, 47, 127])
def test_c14_dim_not_a_multiple_of_32(implementation, device, guards, dim):
    ids = torch.arange(5, device=device)
    graph = maxk.Graph.from_edge_index(torch.stack([ids, (ids + 1) % 5]), 5)
    x = torch.arange(5.0 * dim, device=device).reshape(5, dim).requires_grad_()
    y = maxk.aggregate(
        graph, maxk.maxk(x, 1, implementation=implementation), "sum", implementation=implementation
    )
    upstream = 1 + torch.arange(5.0 * dim, device=device).reshape(5, dim)
    y.backward(upstream)
    want, grad = torch.zeros(5, dim), torch.zeros(5, dim)
    want[:, -1] = torch.tensor([4.0, 0, 1, 2, 3]) * dim + dim - 1
    grad[:, -1] = upstream.cpu()[[1, 2, 3, 4, 0], -1]
    if dim == 33:
        assert want[:, 32].tolist() == [164, 32, 65, 98, 131]
    same(y, want.tolist())
    same(x.grad, grad.tolist())
    assert guards() > 0 or implementation == "reference"


@dtypes
@pytest.mark.parametrize("k", [1, 32])
@pytest.mark.parametrize("dim", [256, 257, 512, 1000, 4096])
def test_c15_dim_above_256(implementation, device, dtype, dim, k):
    graph = graph_of([(0, 1)], 2, device=device)
    # Half-precision numbers above 256 or 2048 tie after rounding, so ranks are kept small.
    x = torch.zeros(2, dim, dtype=dtype, device=device)
    x[0, dim - k :] = torch.arange(1, k + 1, dtype=dtype, device=device)
    if dtype in (torch.float32, torch.float64):
        x[0] = torch.arange(dim, dtype=dtype, device=device)
    x.requires_grad_()
    h = maxk.maxk(x, k, implementation=implementation)
    y = maxk.aggregate(graph, h, "sum", implementation=implementation)
    y.sum().backward()
    want = torch.zeros(2, dim, dtype=dtype)
    want[1, dim - k :] = x.detach().cpu()[0, dim - k :]
    assert torch.equal(y.cpu(), want)
    assert torch.equal(x.grad[0].cpu(), (want[1] != 0).to(dtype))


@dtypes
def test_c16_exact_sparsity(implementation, device, dtype):
    for row, columns, dense in [
        ([0, -1, -2, 5], {0, 3}, [0, 0, 0, 5]),
        ([-3, -1, -2], {1, 2}, [0, -1, -2]),
    ]:
        x = leaf([row], device, dtype)
        h = maxk.maxk(x, 2, implementation=implementation)
        assert set(h.columns[0].tolist()) == columns
        assert sorted(h.values[0].tolist()) == sorted(row[c] for c in columns)
        same(h.to_dense(), [dense])
        h.to_dense().sum().backward()
        same(x.grad, [[1.0 if c in columns else 0.0 for c in range(len(row))]])
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    h = maxk.maxk(x, 8, implementation=implementation)
    assert h.values.shape == (8, 8)
    stored = torch.zeros_like(x).scatter(1, h.columns.long(), torch.ones_like(h.values))
    assert stored.sum(1).eq(8).all()
    assert torch.equal(h.to_dense(), x * stored)
    assert x.masked_fill(stored == 0, -INF).min() == -INF
    assert (
        x.masked_fill(stored == 0, INF).amin(1) >= x.masked_fill(stored == 1, -INF).amax(1)
    ).all()


@dtypes
@every_format
def test_c17_bipartite(implementation, device, dtype, compressed):
    pairs = torch.tensor([[0, 1, 1, 1], [0, 1, 2, 3]], device=device)
    for edges, counts, x, g, y, dx in [
        (pairs, (2, 4), [[1], [10]], [1, 2, 3, 4], [1, 10, 10, 10], [1, 9]),
        (pairs.flip(0), (4, 2), [[1], [2], [3], [4]], [1, 10], [1, 9], [1, 10, 10, 10]),
    ]:
        graph = maxk.Graph.from_edge_index(edges, counts)
        x = leaf(x, device, dtype)
        h = maxk.maxk(x, 1, implementation=implementation) if compressed else x
        out = maxk.aggregate(graph, h, "sum", implementation=implementation)
        out.backward(torch.tensor(g, dtype=dtype, device=device)[:, None])
        same(out.flatten(), y)
        same(x.grad.flatten(), dx)
        with pytest.raises(
            ValueError, match=f"square graph, got {counts[0]} source and {counts[1]}"
        ):
            maxk.aggregate(graph, h, "gcn", implementation=implementation)


@dtypes
@every_format
def test_c18_directed(implementation, device, dtype, compressed):
    pairs = [(0, 1), (1, 2)]
    matrix = torch.zeros(3, 3)
    for source, target in pairs:
        matrix[target, source] = 1
    rows = matrix.to_sparse_csr()
    for graph in (
        graph_of(pairs, 3, device=device),
        graph_of(pairs[::-1], 3, device=device),
        maxk.Graph.from_csr(rows.crow_indices(), rows.col_indices()).to(device),
        graph_of([pair[::-1] for pair in pairs], 3, device=device).transpose(),
        torch.tensor(pairs, device=device).t().contiguous(),
    ):
        x = leaf([[1], [10], [100]], device, dtype)
        h = maxk.maxk(x, 1, implementation=implementation) if compressed else x
        y = maxk.aggregate(graph, h, "sum", implementation=implementation)
        y.backward(torch.tensor([[5], [7], [11]], dtype=dtype, device=device))
        same(y, [[0], [1], [10]])
        same(x.grad, [[7], [11], [0]])


@pytest.mark.parametrize("k", [1, 2, None])
@dtypes
def test_c19_edge_weight_gradient(implementation, device, dtype, k):
    weight = leaf([0.5, 2], device, dtype)
    graph = graph_of([(0, 2), (1, 2)], 3, weight, device)
    x = leaf([[3, 1], [2, 4], [0, 0]], device, dtype)
    h = x if k is None else maxk.maxk(x, k, implementation=implementation)
    y = maxk.aggregate(graph, h, "sum", implementation=implementation)
    y.sum().backward()
    if k == 1:
        same(y, [[0, 0], [0, 0], [1.5, 8]])
        same(weight.grad, [3, 4])
        same(x.grad, [[0.5, 0], [0, 2], [0, 0]])
    else:
        same(y, [[0, 0], [0, 0], [5.5, 8.5]])
        same(weight.grad, [4, 6])
        same(x.grad, [[0.5, 0.5], [2, 2], [0, 0]])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_c19_edge_weight_gradient_under_autocast(implementation, device, dtype):
    weight, x = leaf([0.5, 2], device), leaf([[3, 1], [2, 4], [0, 0]], device)
    graph = graph_of([(0, 2), (1, 2)], 3, weight, device)
    with torch.autocast(device.type, dtype=dtype):
        # What a linear layer makes of float32 features under autocast.
        low = torch.nn.functional.linear(x, torch.eye(2, device=device))
        assert low.dtype == dtype
        h = maxk.maxk(low, 1, implementation=implementation)
        y = maxk.aggregate(graph, h, "sum", implementation=implementation)
    y.float().sum().backward()
    assert weight.grad.dtype == torch.float32
    for got, want in [
        (y[2], [1.5, 8]),
        (weight.grad, [3, 4]),
        (x.grad, [[0.5, 0], [0, 2], [0, 0]]),
    ]:
        np.testing.assert_allclose(got.detach().float().cpu(), want, rtol=1e-2)


def test_c20_offsets_above_int32():
    check_indptr(torch.tensor([0, 2**31]), 2**31)
    check_indptr(torch.tensor([0, 2**31 - 1, 2**32 + 5]), 2**32 + 5)
    for end in (2**31, 2**31 - 1):
        with pytest.raises(ValueError, match=rf"end at the number of entries.*\(1\), got {end}"):
            maxk.Graph.from_csr(torch.tensor([0, end]), torch.tensor([0]))
    # What a 32-bit pointer makes of 2^31.
    wrapped = torch.tensor([0, -(2**31)], dtype=torch.int32)
    with pytest.raises(ValueError, match=rf"got -{2**31}"):
        maxk.Graph.from_csr(wrapped, torch.tensor([0]))
    # Work is cut up with 64-bit offsets: 31 bits, and the rest above the number of edges.
    pieces = build_schedule(torch.tensor([2**31, 2**31 + 2, 2**31 + 5]), 5).pieces.tolist()
    starts = [(packed >> 16) << 31 | low for _, low, packed, _ in pieces]
    assert starts == [2**31, 2**31 + 2]


ROWS = 8_388_609  # times 256 is 2^31 + 256


def free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info()[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def roomy(device):
    needed = 12 * 2**30
    if free_memory(device) < needed:
        pytest.skip(f"needs {needed >> 30} GiB of free memory")


@pytest.mark.huge
@pytest.mark.usefixtures("roomy")
def test_c20_last_row_is_read(implementation, device):
    """Fresh zeros take no memory on a CPU until they are written."""
    if implementation == "reference":
        pytest.skip("the reference sorts every row: 2^31 int64 positions")
    x = torch.zeros(ROWS, 256, device=device)
    x[-1] = 1
    graph = maxk.Graph.from_edge_index(torch.tensor([[ROWS - 1], [0]], device=device), (ROWS, 2))
    y = maxk.aggregate(graph, x, "sum", implementation=implementation)
    assert y.sum(1).tolist() == [256, 0]
    h = maxk.maxk(x, 1, implementation=implementation)
    assert (h.values[-1].item(), h.columns[-1].item()) == (1, 0)
    assert int(torch.count_nonzero(h.values)) == 1


@pytest.mark.huge
@pytest.mark.usefixtures("roomy")
def test_c20_last_compressed_row_is_read(implementation, device):
    if implementation == "reference":
        pytest.skip("the reference scatters to a dense matrix of 2^36 entries")
    rows = 2**26 + 1  # times 32 is 2^31 + 32
    values = torch.zeros(rows, 32, device=device)
    columns = torch.zeros(rows, 32, dtype=torch.uint8, device=device)
    values[-1] = 1
    columns[-1] = torch.arange(0, 256, 8, device=device)
    graph = maxk.Graph.from_edge_index(torch.tensor([[rows - 1], [0]], device=device), (rows, 2))
    h = maxk.CBSR(values, columns, 256)
    y = maxk.aggregate(graph, h, "sum", implementation=implementation)
    assert y.sum(1).tolist() == [32, 0]
    assert y[0, ::8].eq(1).all()


@pytest.mark.huge
@pytest.mark.usefixtures("roomy")
def test_c20_edges_behind_2_31_are_read(implementation, device):
    """Rows of 512 edges fill the first 2^31 places; the last row's edges stand behind them."""
    if implementation == "reference":
        pytest.skip("the reference gathers a dense row for each of 2^31 edges")
    rows = 2**22
    indptr = 512 * torch.arange(rows + 2, device=device)
    indptr[-1] = 2**31 + 3
    indices = torch.zeros(2**31 + 3, dtype=torch.int32, device=device)
    indices[-3:] = torch.tensor([1, 2, 1], dtype=torch.int32)
    graph = maxk.Graph.from_csr(indptr, indices, num_src=3)
    x = torch.tensor([[1.0, 0, 0, 0], [0, 8, 4, 0], [0, 2, 0, 16]], device=device)
    # The gradient needs the transpose on a CPU, which sorts all of the edges.
    x.requires_grad_(device.type == "cuda")
    h = maxk.maxk(x, 2, implementation=implementation)
    y = maxk.aggregate(graph, h, "sum", implementation=implementation)
    assert y[-1].tolist() == [0, 18, 8, 16]
    assert y[:-1].amin(0).tolist() == y[:-1].amax(0).tolist() == [512, 0, 0, 0]
    if x.requires_grad:
        grad = torch.zeros_like(y)
        grad[-1] = 1
        y.backward(grad)
        assert x.grad.tolist() == [[0, 0, 0, 0], [0, 2, 2, 0], [0, 1, 0, 1]]


@pytest.mark.huge
@pytest.mark.usefixtures("roomy")
def test_c20_last_row_is_written(implementation, device):
    graph = maxk.Graph.from_edge_index(torch.tensor([[0], [ROWS - 1]], device=device), (1, ROWS))
    h = maxk.maxk(torch.arange(256.0, device=device)[None], 32, implementation=implementation)
    y = maxk.aggregate(graph, h, "sum", implementation=implementation)
    assert y[-1, 224:].tolist() == list(range(224, 256))
    assert int(torch.count_nonzero(y[-1])) == 32
    assert not y[:2].any()
    assert not y[ROWS // 2].any()


def test_c21_multi_label(tmp_path):
    y = torch.tensor([[1, 0, 1], [0, 0, 1]])
    path = tmp_path / "labels.npz"
    every = np.array([True, True])
    np.savez(path, edge_index=np.array([[0], [1]]), x=np.eye(2), y=y.numpy().astype(np.int64),
             train_mask=every, val_mask=every, test_mask=every)  # fmt: skip
    data = load(path)
    assert (data.num_classes, data.metric) == (3, "micro_f1")
    config = TrainConfig(hidden=4, k=2, layers=1, epochs=1, device="cpu")
    trainer = Trainer(config, data)
    assert trainer.predict().shape == (2, 3)
    assert math.isfinite(trainer.train_epoch().loss)
    assert metrics.loss(torch.zeros(2, 3), y).item() == pytest.approx(0.693147, abs=1e-6)
    signs = torch.where(y > 0, 1.0, -1.0)
    for logits, want in [(signs, 1.0), (torch.ones(2, 3), 0.666667), (-torch.ones(2, 3), 0.0)]:
        assert metrics.micro_f1(logits, y) == pytest.approx(want, abs=1e-6)


def test_c22_mask_shape(tmp_path):
    columns = np.array([[1, 0], [0, 1], [0, 1], [1, 0]], bool)

    def saved(**masks):
        path = tmp_path / "masks.npz"
        np.savez(path, edge_index=np.array([[0], [1]]), x=np.eye(4), y=np.array([0, 1, 0, 1]),
                 **{name: np.array(mask, bool) for name, mask in masks.items()})  # fmt: skip
        return path

    rest = dict(val_mask=[0, 1, 0, 0], test_mask=[0, 0, 1, 0])
    with pytest.raises(DataError, match=r"masks.npz.*holds 2 splits"):
        load(saved(train_mask=columns, **rest))
    chosen = load(saved(train_mask=columns, **rest), split=0)
    assert chosen.train_mask.nonzero().flatten().tolist() == [0, 3]
    with pytest.raises(DataError, match="train_mask must have 4 entries, one per node, got 5"):
        load(saved(train_mask=[1, 0, 0, 1, 0], **rest))
    with pytest.raises(DataError, match="train_mask is False for all nodes"):
        load(saved(train_mask=[0, 0, 0, 0], **rest))
    both = load(saved(train_mask=[1, 0, 1, 0], **rest))
    assert both.notes == ("warning: train and test masks overlap in 1 nodes",)


SMALL = TrainConfig(
    dataset="synthetic:nodes=60,degree=4,communities=3,features=6",
    hidden=8, k=4, layers=2, epochs=6, device="cpu",
)  # fmt: skip


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "epochs.jsonl").read_text().splitlines()]


def test_c23_checkpoint_opens_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Saved as a GPU would have saved it: the settings name a device that is not here.
    folder, _ = runs.run(replace(SMALL, epochs=1, out="made"))
    settings = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(settings.replace('device = "cpu"', 'device = "cuda"'))
    state = torch.load(folder / "state.pt", weights_only=True)
    assert all(tensor.device.type == "cpu" for tensor in state["model"].values())
    trainer = open_run(folder, **({"device": "cpu"} if torch.cuda.is_available() else {}))
    weights = checkpoint.load_weights(folder / "best.safetensors")
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(tensor.cpu(), weights[name])
    assert main(["evaluate", str(folder)]) == 0


def hub_and_ring() -> maxk.Dataset:
    """200 nodes in a ring, and node 0 linked both ways with all."""
    ids = torch.arange(200)
    hub = torch.stack([torch.zeros(199, dtype=torch.int64), ids[1:]])
    edges = torch.cat([torch.stack([ids, (ids + 1) % 200]), hub, hub.flip(0)], dim=1)
    x = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    masks = [ids % 3 == part for part in range(3)]
    graph = maxk.Graph.from_edge_index(edges, 200)
    return maxk.Dataset("hub", graph, x, (x[:, 0] > 0).long(), *masks, 2, "accuracy")


@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_c24_same_seed(place):
    config = TrainConfig(hidden=16, k=4, epochs=5, seed=1, deterministic=True, device=place)

    def trained(seed: int) -> tuple[list[float], list[torch.Tensor]]:
        trainer = Trainer(replace(config, seed=seed), hub_and_ring())
        trainer.fit()
        weights = [tensor.cpu() for tensor in trainer.model.state_dict().values()]
        return [epoch.loss for epoch in trainer.history], weights

    first, again, other = trained(1), trained(1), trained(2)
    assert len(first[0]) == 5
    assert first[0] == again[0]
    assert all(torch.equal(a, b) for a, b in zip(first[1], again[1], strict=True))
    assert first[0] != other[0]


@every_format
def test_c25_second_derivative(implementation, device, compressed):
    graph = graph_of([(0, 1)], 2, device=device)
    x = leaf([[2, 1], [0, 0]], device, torch.float64)
    h = maxk.maxk(x, 1, implementation=implementation)
    h = h if compressed else h.to_dense()
    total = maxk.aggregate(graph, h, "sum", implementation=implementation).square().sum()
    (grad,) = torch.autograd.grad(total, x, create_graph=True)
    (product,) = torch.autograd.grad(grad.sum(), x)
    assert total.item() == 4
    same(grad, [[4, 0], [0, 0]])
    same(product, [[2, 0], [0, 0]])


@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_c26_torch_compile(place):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    model = maxk.nn.GraphSAGE(4, 8, 2, 3, k=2).to(place)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for nodes in (3, 5, 7):
        ids = torch.arange(nodes - 1, device=place)
        graph = maxk.Graph.from_edge_index(torch.stack([ids, ids + 1]), nodes)
        results = []
        for call in (compiled, model):
            x = torch.linspace(-2, 2, 4 * nodes, device=place).sin().reshape(nodes, 4)
            x.requires_grad_()
            model.zero_grad()
            y = call(x, graph)
            y.square().sum().backward()
            results.append([y, x.grad, *[p.grad.clone() for p in model.parameters()]])
        assert results[0][0].shape == (nodes, 3)
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
    assert not torch._dynamo.utils.counters["graph_break"]


def path_conv(device) -> tuple[torch.nn.Module, maxk.Graph, torch.Tensor]:
    conv = maxk.nn.SAGEConv(1, 1, aggr="sum", root_weight=False, bias=False).to(device)
    torch.nn.init.ones_(conv.lin_l.weight)
    x = torch.tensor([[1.0], [2], [3], [4]], device=device)
    return conv, graph_of([(0, 3)], 4, device=device), x


@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_c27_data_parallel(place):
    conv, graph, x = path_conv(place)
    parallel = torch.nn.DataParallel(conv, device_ids=None if place == "cpu" else [0])
    same(parallel(x, graph), [[0], [0], [0], [1]])


@pytest.mark.multigpu
def test_c27_data_parallel_over_two_gpus_is_refused():
    conv, graph, x = path_conv("cuda:0")
    with pytest.raises(RuntimeError, match="DistributedDataParallel"):
        torch.nn.DataParallel(conv, device_ids=[0, 1])(x, graph)


@pytest.mark.parametrize("name", ["state.pt", "best.safetensors"])
def test_c29_interrupted_run(tmp_path, monkeypatch, caplog, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "SAVE_SECONDS", 0.0)
    whole, _ = runs.run(replace(SMALL, out="whole"))

    def stop(trainer: Trainer, record: object) -> None:
        if trainer.epoch == 3:
            raise RuntimeError("the power went")

    with pytest.raises(RuntimeError, match="the power went"):
        runs.run(replace(SMALL, out="cut"), runs.Watcher(on_epoch=stop))
    path = Path("cut", name)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    if name == "state.pt":
        # Epoch 2 was the newest save, epoch 1 the one before.
        assert checkpoint.load_state(Path("cut"))["epoch"] == 1
        assert "state.pt is cut short or is no checkpoint; continuing from" in caplog.text
    folder, summary = runs.run(resumed_config("cut"))
    assert summary["epochs"] == 6
    assert losses(folder) == losses(whole)
    for file in ("last.safetensors", "best.safetensors"):
        assert (folder / file).read_bytes() == (whole / file).read_bytes()


def test_c30_counts_disagree(tmp_path):
    path = tmp_path / "g.npz"
    np.savez(path, edge_index=np.array([[0, 3], [1, 2]]), x=np.eye(3), y=np.zeros(4, np.int64))
    with pytest.raises(DataError, match=r"g\.npz.* x has 3 rows.* y has 4 rows.*reach id 3"):
        load(path)


def test_c30_a_file_cut_short(tmp_path, capsys):
    path = tmp_path / "g.npz"
    np.savez(path, edge_index=np.array([[0, 3], [1, 2]]), x=np.eye(4), y=np.zeros(4, np.int64))
    path.write_bytes(path.read_bytes()[:100])
    assert main(["train", "--dataset", str(path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("maxk: ")
    assert "Traceback" not in told
    assert "g.npz" in told
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("text", "message"), [
    ("source target\n0 1\n3 2\n\n", None),
    ("0 1\none 2\n", r"g\.txt:2: expected an integer node id in field 1, got 'one'"),
    ("1 2\n2 3\n3 4\n", r"g\.txt:3: target id 4 lies outside 0\.\.3.*look 1-based"),
    ("0 1\n0 -1\n", r"g\.txt:2: .*-1"),
], ids=["header", "word", "1-based", "negative"])  # fmt: skip
def test_c30_edge_lists(tmp_path, text, message):
    path = tmp_path / "g.txt"
    path.write_text(text)
    np.save(tmp_path / "g.labels.npy", np.array([0, 1, 0, 1]))
    before = sorted(tmp_path.iterdir())
    if message is None:
        assert load(path).graph.edge_index().tolist() == [[0, 3], [1, 2]]
    else:
        with pytest.raises(DataError, match=message) as caught:
            load(path)
        assert not re.search("\n", str(caught.value))
    assert sorted(tmp_path.iterdir()) == before
