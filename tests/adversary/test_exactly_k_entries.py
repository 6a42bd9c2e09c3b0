"""A sparse activation that returned every value, or lost those that are zero."""

from __future__ import annotations

import torch

import maxk
from adversary.tiny import INF, dtypes, leaf, same


@dtypes
def test_exactly_k_entries_are_stored(implementation, device, dtype):
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
