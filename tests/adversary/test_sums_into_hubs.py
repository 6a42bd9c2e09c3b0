"""Half-precision sums that stall at a hub; dtypes mixed or narrowed in silence."""

from __future__ import annotations

import pytest
import torch

import maxk
from adversary.tiny import dtypes, every_format, graph_of
from graphs import star
from maxk.ops.spmm.reference import accumulation_dtype


@dtypes
@every_format
@pytest.mark.parametrize("leaves", [5000, 70_000])
def test_a_hub_sums_in_a_wide_accumulator(implementation, device, dtype, leaves, compressed):
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
def test_double_stays_double(implementation, device, compressed):
    x = torch.tensor([[0.0], [1.0], [1e-9]], dtype=torch.float64, device=device)
    h = maxk.maxk(x, 1, implementation=implementation) if compressed else x
    y = maxk.aggregate(star(2).to(device), h, "sum", implementation=implementation)
    assert y[0].item() == 1.000000001


def test_integer_and_mixed_dtypes_are_refused(device):
    graph = graph_of([(0, 1)], 2, torch.ones(1, device=device), device)
    x = torch.ones(2, 1, device=device)
    with pytest.raises(TypeError, match=r"got torch\.int64"):
        maxk.aggregate(graph, x.long(), "sum")
    for dtype in (torch.float16, torch.float64):
        with pytest.raises(TypeError, match=f"share one dtype, got {dtype} and torch.float32"):
            maxk.aggregate(graph, maxk.maxk(x.to(dtype), 1), "sum")
