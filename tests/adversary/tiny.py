"""Graphs of a few nodes, written as pairs, and comparisons to the bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import maxk

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
