"""Widths that leave a tile partly filled, or pass what 8-bit columns and shared memory hold."""

from __future__ import annotations

import math

import pytest
import torch

import maxk
from adversary.tiny import dtypes, graph_of, same

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
def test_a_tile_filled_in_part_keeps_to_itself(implementation, device, guards, dim):
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
def test_columns_above_256_do_not_wrap(implementation, device, dtype, dim, k):
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
