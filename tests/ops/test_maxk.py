from __future__ import annotations

import math

import pytest
import torch

import maxk
from maxk.cbsr import CBSR, column_dtype

NAN, INF = math.nan, math.inf
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("width", "ks"), [
    (1, [1]), (2, [1, 2]), (31, [1, 7, 31]), (33, [1, 32, 33]), (63, [5]), (64, [64, 63, 1]),
    (127, [40]), (256, [1, 16, 32, 255, 256]), (257, [1, 32, 257]), (1000, [1, 500, 999]),
    (4096, [1, 32]), (40000, [3]),
])  # fmt: skip
def test_same_entries_as_reference(implementation, device, dtype, width, ks):
    x = torch.randn(37, width, generator=torch.Generator().manual_seed(width)).to(dtype)
    # A coarse copy makes many ties.
    for rows in (x, (x * 2).round() / 2):
        for k in ks:
            got = maxk.maxk(rows.to(device), k, implementation=implementation)
            want = CBSR.from_dense(rows, k)
            assert got.columns.dtype == column_dtype(width)
            got_columns, order = got.columns.cpu().long().sort(dim=1)
            assert torch.equal(got_columns, want.columns.long())
            assert torch.equal(got.values.cpu().gather(1, order), want.values)


@pytest.mark.parametrize(("row", "k", "kept"), [
    ([1, NAN, 3, 2], 2, {1, 2}),
    ([NAN] * 4, 2, {0, 1}),
    ([-NAN, NAN, 1.0], 1, {0}),
    ([INF, -INF, NAN, 0], 2, {0, 2}),
    ([INF, -INF, 1, 2], 2, {0, 3}),
    ([-INF, -INF, -INF], 2, {0, 1}),
    ([-INF, -INF, -5, -INF], 2, {0, 2}),
    ([7, 7, 7, 7, 7], 2, {0, 1}),
    ([1, 5, 5, 0, 5], 2, {1, 2}),
    ([-0.0, 0.0, -1], 1, {0}),
    ([0.0, -0.0, -1], 1, {0}),
    ([0, -1, -2, 5], 2, {0, 3}),
    ([-3, -1, -2], 2, {1, 2}),
    ([1e-45, 0.0, -1e-45], 2, {0, 1}),
    ([3e38, -3e38, 2e38, 1e-30], 2, {0, 2}),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rank_of_awkward_values(implementation, device, dtype, row, k, kept):
    x = torch.tensor([row], dtype=dtype)
    # Signed NaNs survive construction only through the sign bit.
    if any(isinstance(v, float) and math.isnan(v) and math.copysign(1, v) < 0 for v in row):
        x[0, 0] = torch.tensor(NAN, dtype=dtype).neg()
    got = maxk.maxk(x.to(device), k, implementation=implementation)
    assert set(got.columns[0].tolist()) == kept
    dense = got.to_dense().cpu()
    for c in range(len(row)):
        want = x[0, c] if c in kept else torch.zeros((), dtype=dtype)
        assert torch.equal(dense[0, c], want) or bool(dense[0, c].isnan() & want.isnan())


def test_gradient_flows_at_stored_positions_only(implementation, device):
    for row, k, want in [
        ([0.0, -1, -2, 5], 2, [1.0, 0, 0, 1]),
        ([1.0, 5, 5, 0, 5], 2, [0, 1, 1, 0, 0]),
    ]:
        x = torch.tensor([row], device=device, requires_grad=True)
        maxk.maxk(x, k, implementation=implementation).values.sum().backward()
        assert x.grad.tolist() == [want]


def test_gradient_through_to_dense(implementation, device):
    x = torch.randn(20, 33, dtype=torch.float64, device=device, requires_grad=True)
    upstream = torch.randn(20, 33, dtype=torch.float64, device=device)
    h = maxk.maxk(x, 7, implementation=implementation)
    (h.to_dense() * upstream).sum().backward()
    mask = CBSR.from_dense(x.detach().cpu(), 7).to_dense() != 0
    assert torch.equal(x.grad.cpu(), torch.where(mask, upstream.cpu(), 0.0))


def test_k_equal_to_width_is_identity(implementation, device):
    x = torch.randn(4, 5, device=device, requires_grad=True)
    y = maxk.maxk(x, 5, implementation=implementation).to_dense()
    assert torch.equal(y, x)
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))


@pytest.mark.parametrize("k", [0, -1, 5])
def test_k_outside_the_row_names_both_numbers(k):
    with pytest.raises(ValueError, match=rf"k must lie in \[1, 4\].*D=4.*k={k}"):
        maxk.maxk(torch.randn(2, 4), k)


@pytest.mark.parametrize("k", [2.5, True, "2", None])
def test_k_of_another_type(k):
    with pytest.raises(TypeError, match="k must be an int"):
        maxk.maxk(torch.randn(2, 4), k)


@pytest.mark.parametrize(("x", "error", "text"), [
    (torch.ones(4), ValueError, r"shape \[N, D\], got \[4\]"),
    (torch.ones(2, 0), ValueError, "at least one column"),
    (torch.ones(2, 4, dtype=torch.int64), TypeError, r"got torch.int64; call x.float\(\)"),
    (torch.eye(3).to_sparse(), TypeError, "dense tensor"),
    ([[1.0]], TypeError, "got list"),
])  # fmt: skip
def test_bad_features(x, error, text):
    with pytest.raises(error, match=text):
        maxk.maxk(x, 1)


def test_no_rows(implementation, device):
    h = maxk.maxk(torch.empty(0, 8, device=device), 3, implementation=implementation)
    assert h.values.shape == (0, 3)
    assert h.to_dense().shape == (0, 8)


def test_strided_input(implementation, device):
    big = torch.randn(40, 66, device=device)
    for view in (big.t(), big[:, ::2], big[3:, 5:], big[::3]):
        got = maxk.maxk(view, 5, implementation=implementation)
        want = CBSR.from_dense(view.contiguous().cpu(), 5)
        assert torch.equal(got.to_dense().cpu(), want.to_dense())


def test_input_is_left_alone(implementation, device):
    x = torch.randn(9, 17, device=device)
    copy = x.clone()
    maxk.maxk(x, 4, implementation=implementation)
    assert torch.equal(x, copy)


def test_second_derivative(implementation, device):
    x = torch.randn(6, 9, dtype=torch.float64, device=device, requires_grad=True)
    f = lambda x: maxk.maxk(x, 3, implementation=implementation).values ** 3  # noqa: E731
    assert torch.autograd.gradgradcheck(f, (x,))


def test_cbsr_constructor_checks():
    with pytest.raises(ValueError, match=r"share one shape \[N, k\]"):
        CBSR(torch.ones(2, 3), torch.zeros(2, 2, dtype=torch.uint8), 4)
    with pytest.raises(TypeError, match=r"width 300 must be torch.int16, got torch.uint8"):
        CBSR(torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.uint8), 300)
    with pytest.raises(ValueError, match="distinct in a row, row 1"):
        CBSR(torch.ones(2, 2), torch.tensor([[0, 1], [3, 3]], dtype=torch.uint8), 4).validate()
    with pytest.raises(ValueError, match=r"\[0, 3\], row 0"):
        CBSR(torch.ones(1, 2), torch.tensor([[0, 4]], dtype=torch.uint8), 4).validate()


def test_cbsr_bytes_and_moves():
    h = maxk.maxk(torch.randn(10, 100), 8)
    assert h.nbytes == 10 * 8 * 5
    assert h.to(torch.float64).dtype == torch.float64
    assert repr(h) == "CBSR(rows=10, k=8, width=100, dtype=torch.float32, device=cpu)"
