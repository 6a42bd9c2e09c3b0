"""NaN, infinities and equal values led selection to impossible or unequal positions."""

from __future__ import annotations

import pytest

import maxk
from adversary.tiny import INF, NAN, dtypes, graph_of, leaf, same


@dtypes
@pytest.mark.parametrize(("row", "columns", "output"), [
    ([1, NAN, 3, 2], {1, 2}, [0, NAN, 3, 0]),
    ([NAN] * 4, {0, 1}, [NAN, NAN, 0, 0]),
    ([INF, -INF, NAN, 0], {0, 2}, [INF, 0, NAN, 0]),
    ([INF, -INF, 1, 2], {0, 3}, [INF, 0, 0, 2]),
    ([-INF, -INF, -INF, -INF], {0, 1}, [-INF, -INF, 0, 0]),
    ([NAN, INF, NAN, NAN], {0, 2}, [NAN, 0, NAN, 0]),
])  # fmt: skip
def test_nan_and_infinity_pass_through(implementation, device, dtype, row, columns, output):
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
def test_ties_go_to_the_lowest_column(implementation, device, dtype, row, k, columns):
    x = leaf([row] * 5, device, dtype)
    for _ in range(20):
        h = maxk.maxk(x, k, implementation=implementation)
        assert h.columns.shape == (5, k)
        assert all(set(kept) == columns for kept in h.columns.tolist())
    h.values.sum().backward()
    same(x.grad, [[1.0 if c in columns else 0.0 for c in range(len(row))]] * 5)
