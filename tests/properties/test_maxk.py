"""What MaxK and CBSR promise for every input."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import maxk
from maxk.cbsr import CBSR, column_dtype
from properties.strategies import LAYOUTS, features, strided

NAN, INF = math.nan, math.inf
FORMATS = st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16])


@st.composite
def matrices(draw) -> torch.Tensor:
    """Any float32 there is: NaN, infinities, both zeros, subnormal numbers, many ties."""
    shape = (draw(st.integers(0, 5)), draw(st.integers(1, 40)))
    few = st.sampled_from([0.0, -0.0, 1.0, -1.0, NAN, -NAN, INF, -INF, 1e-45, 3e38])
    entries = draw(st.sampled_from([st.floats(width=32), few]))
    x = torch.from_numpy(draw(hnp.arrays(np.float32, shape, elements=entries)))
    return strided(x, draw(st.sampled_from(LAYOUTS)))


def ranked(row: list[float], k: int) -> list[int]:
    """The contract in plain Python: NaN first, larger first, -0.0 equals 0.0, then lower column."""
    order = sorted(range(len(row)), key=lambda c: (row[c] == row[c], -row[c], c))
    return sorted(order[:k])


@given(x=matrices(), data=st.data(), dtype=FORMATS)
def test_the_k_largest_of_any_row(implementation, device, x, data, dtype):
    x = x.to(dtype)
    k = data.draw(st.integers(1, x.shape[1]))
    h = maxk.maxk(x.to(device), k, implementation=implementation).validate()
    assert h.values.shape == h.columns.shape == (x.shape[0], k)
    assert h.columns.dtype == column_dtype(x.shape[1])
    dense = h.to_dense().cpu()
    for i, row in enumerate(x.tolist()):
        kept = ranked(row, k)
        assert sorted(h.columns[i].tolist()) == kept
        want = [v if c in kept else 0.0 for c, v in enumerate(row)]
        np.testing.assert_array_equal(dense[i].double(), want)


@given(shape=features(), rows=st.integers(0, 9), dtype=FORMATS)
def test_round_trip_of_cbsr(implementation, device, shape, rows, dtype):
    g = torch.Generator().manual_seed(shape.seed)
    columns = torch.rand(rows, shape.width, generator=g).argsort(dim=1)[:, : shape.k]
    values = shape.dense(rows, dtype)[:, : shape.k] + 100  # above every 0 between them
    given = CBSR(values, columns.to(column_dtype(shape.width)), shape.width).to(device)
    dense = maxk.ops.maxk.op.to_dense(given.validate(), implementation=implementation)
    assert torch.equal(dense, given.to_dense())
    again = maxk.maxk(dense, shape.k, implementation=implementation)
    assert torch.equal(again.to_dense(), dense)
    ours, order = again.columns.long().sort(dim=1)
    theirs, other = given.columns.long().sort(dim=1)
    assert torch.equal(ours, theirs)
    assert torch.equal(again.values.gather(1, order), given.values.gather(1, other))


@given(shape=features(), rows=st.integers(0, 9))
def test_maxk_twice_is_maxk_once(implementation, device, shape, rows):
    # Behind negative kept entries the zeros of the dense form would rank; positive ones stay.
    x = shape.dense(rows, device=device).abs() + 1
    once = maxk.maxk(x, shape.k, implementation=implementation).to_dense()
    twice = maxk.maxk(once, shape.k, implementation=implementation).to_dense()
    assert torch.equal(twice, once)


@given(shape=features(), rows=st.integers(0, 9), data=st.data())
def test_rows_do_not_see_each_other(implementation, device, shape, rows, data):
    x = shape.dense(rows, device=device)
    order = torch.tensor(data.draw(st.permutations(range(rows))), dtype=torch.int64, device=device)
    together = maxk.maxk(x, shape.k, implementation=implementation).to_dense()
    permuted = maxk.maxk(x[order], shape.k, implementation=implementation).to_dense()
    assert torch.equal(permuted, together[order])


@given(shape=features(), rows=st.integers(0, 9))
def test_gradient_is_the_upstream_at_stored_places(implementation, device, shape, rows):
    x = shape.dense(rows, device=device).detach().requires_grad_()
    h = maxk.maxk(x, shape.k, implementation=implementation)
    upstream = torch.arange(1.0, x.numel() + 1, dtype=x.dtype, device=device).reshape(x.shape)
    maxk.ops.maxk.op.to_dense(h, implementation=implementation).backward(upstream)
    stored = torch.zeros_like(x).scatter(1, h.columns.long(), 1.0)
    assert torch.equal(x.grad, upstream * stored)
