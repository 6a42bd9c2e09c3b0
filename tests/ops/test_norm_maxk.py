"""LayerNorm and MaxK as one operation, and the node's own term added in place."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import maxk
from maxk.cbsr import column_dtype
from maxk.nn.functional import add_linear, add_scaled

SHAPES = [
    (1, 1, 1), (7, 2, 1), (5, 31, 3), (40, 33, 20), (65, 64, 8), (300, 256, 32), (77, 256, 256),
    (64, 257, 32), (50, 384, 32), (9, 512, 100), (17, 1000, 96), (6, 2049, 64), (0, 16, 4),
]  # fmt: skip
TOLERANCE = {
    torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 1e-2, torch.float16: 2e-3,
}  # fmt: skip


def operands(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(rows + width)
    x = 3 * torch.randn(rows, width, generator=g) + 2
    weight = torch.rand(width, generator=g) + 0.5
    bias = torch.randn(width, generator=g)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return x.to(device, dtype), weight.to(device, wide), bias.to(device, wide)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("rows", "width", "k"), SHAPES, ids=str)
def test_is_layer_norm_then_maxk(implementation, device, rows, width, k, dtype):
    x, weight, bias = operands(rows, width, dtype, device)
    h = maxk.layer_norm_maxk(x, weight, bias, k, implementation=implementation)
    assert h.values.shape == h.columns.shape == (rows, k)
    assert (h.values.dtype, h.columns.dtype) == (dtype, column_dtype(width))
    h.validate()
    truth = F.layer_norm(x.double(), (width,), weight.double(), bias.double())
    columns = h.columns.long()
    limit = TOLERANCE[dtype] * truth.abs().amax(1, keepdim=True).clamp(min=1)
    assert ((truth.gather(1, columns) - h.values.double()).abs() <= limit).all()
    # What is left out is nowhere larger than what is kept, but for the last bits.
    rest = truth.scatter(1, columns, -torch.inf)
    if rows and k < width:
        assert (rest.amax(1, keepdim=True) <= h.values.double().amin(1, True) + 2 * limit).all()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("rows", "width", "k"), SHAPES, ids=str)
def test_gradients(implementation, device, rows, width, k, dtype):
    x, weight, bias = (t.requires_grad_() for t in operands(rows, width, dtype, device))
    h = maxk.layer_norm_maxk(x, weight, bias, k, implementation=implementation)
    upstream = torch.randn(rows, k, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    got = torch.autograd.grad(h.values, (x, weight, bias), upstream)
    exact = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    normed = F.layer_norm(exact[0], (width,), exact[1], exact[2])
    want = torch.autograd.grad(
        normed.gather(1, h.columns.long()), exact, upstream.double(), allow_unused=True
    )
    for ours, leaf, true in zip(got, (x, weight, bias), want, strict=True):
        assert (ours.dtype, ours.shape) == (leaf.dtype, leaf.shape)
        largest = float(true.abs().max()) if true.numel() else 0.0
        torch.testing.assert_close(
            ours.double(), true, rtol=0, atol=TOLERANCE[dtype] * 4 * max(largest, 1.0)
        )


def test_second_derivatives(device, implementation):
    x, weight, bias = (t.requires_grad_() for t in operands(5, 9, torch.float64, device))

    def values(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return maxk.layer_norm_maxk(x, weight, bias, 4, implementation=implementation).values

    assert torch.autograd.gradcheck(values, (x, weight, bias))
    assert torch.autograd.gradgradcheck(values, (x, weight, bias))


@pytest.mark.parametrize("width", [5, 256])
def test_rows_with_nan_and_infinity(implementation, device, width):
    x, weight, bias = operands(3, width, torch.float32, device)
    x[0, 1], x[1, 2] = torch.nan, torch.inf
    h = maxk.layer_norm_maxk(x, weight, bias, 2, implementation=implementation)
    assert h.values[:2].isnan().all()
    assert h.columns[:2].long().sort(dim=1).values.tolist() == [[0, 1], [0, 1]]
    assert h.values[2].isfinite().all()


def test_repeats_bit_by_bit(implementation, device):
    leaves = [t.requires_grad_() for t in operands(5000, 256, torch.float32, device)]
    upstream = torch.randn(5000, 32, device=device)
    runs = []
    for _ in range(2):
        h = maxk.layer_norm_maxk(*leaves, 32, implementation=implementation)
        runs.append((h.values, *torch.autograd.grad(h.values, leaves, upstream)))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_says_what_does_not_fit():
    x = torch.ones(2, 4)
    with pytest.raises(ValueError, match=r"weight must have shape \[4\], got \[3\]"):
        maxk.layer_norm_maxk(x, torch.ones(3), torch.ones(4), 2)
    with pytest.raises(ValueError, match="k must lie in"):
        maxk.layer_norm_maxk(x, torch.ones(4), torch.ones(4), 5)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("rows", "width", "k"), SHAPES, ids=str)
def test_own_term_in_place(implementation, device, rows, width, k, dtype):
    x = operands(rows, width, dtype, device)[0]
    h = maxk.maxk(x, k, implementation=implementation)
    values = h.values.detach().requires_grad_()
    h = h.with_values(values)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    scale = torch.tensor([1.5], dtype=wide, device=device, requires_grad=True)
    y = torch.randn(rows, width, device=device).to(dtype).requires_grad_()
    with maxk.implementation(implementation):
        total = add_scaled(y * 1, h, scale)
    upstream = torch.randn(rows, width, device=device).to(dtype)
    got = torch.autograd.grad(total, (y, values, scale), upstream)
    dense = h.to_dense().detach()
    true = y.double() + 1.5 * dense.double()
    torch.testing.assert_close(total.double(), true, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert torch.equal(got[0], upstream)
    picked = upstream.gather(1, h.columns.long())
    torch.testing.assert_close(got[1], (1.5 * picked.double()).to(dtype))
    product = (picked.double() * values.double()).sum()
    size = float((picked.double() * values.double()).abs().sum()) + 1e-6
    assert abs(got[2].item() - product.item()) <= TOLERANCE[dtype] * size


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_own_term_through_a_weight(implementation, device, dtype):
    x = operands(50, 33, dtype, device)[0]
    values = maxk.maxk(x, 5, implementation=implementation).values.detach().requires_grad_()
    h = maxk.maxk(x, 5, implementation=implementation).with_values(values)
    weight = torch.randn(7, 33, device=device).to(dtype).requires_grad_()
    y = torch.randn(50, 7, device=device).to(dtype).requires_grad_()
    with maxk.implementation(implementation):
        total = add_linear(y * 1, h, weight)
        upstream = torch.randn(50, 7, device=device).to(dtype)
        got = torch.autograd.grad(total, (y, values, weight), upstream)
    exact = [t.detach().double().requires_grad_() for t in (y, values, weight)]
    true = exact[0] + h.with_values(exact[1]).to_dense() @ exact[2].t()
    want = torch.autograd.grad(true, exact, upstream.double())
    for ours, theirs in zip((total, *got), (true, *want), strict=True):
        largest = float(theirs.detach().abs().max())
        torch.testing.assert_close(
            ours.double(), theirs, rtol=0, atol=TOLERANCE[dtype] * 4 * largest
        )


def test_own_terms_can_be_differentiated_twice(implementation, device):
    x = operands(6, 9, torch.float64, device)[0]
    h = maxk.maxk(x, 3, implementation=implementation)
    values = h.values.detach().requires_grad_()
    weight = torch.randn(4, 9, dtype=torch.float64, device=device, requires_grad=True)
    scale = torch.tensor([0.3], dtype=torch.float64, device=device, requires_grad=True)

    def linear(values: Tensor, weight: Tensor) -> Tensor:
        with maxk.implementation(implementation):
            return add_linear(x[:, :4] * 1, h.with_values(values), weight)

    def scaled(values: Tensor, scale: Tensor) -> Tensor:
        with maxk.implementation(implementation):
            return add_scaled(x * 1, h.with_values(values), scale)

    assert torch.autograd.gradgradcheck(linear, (values, weight))
    assert torch.autograd.gradgradcheck(scaled, (values, scale))


@pytest.mark.gpu
def test_only_compressed_rows_are_kept():
    torch.manual_seed(0)
    graph = maxk.Graph.from_edge_index(torch.randint(20_000, (2, 50_000)), 20_000).to("cuda")
    model = maxk.nn.GraphSAGE(256, 256, 3, 5, k=8, dropout=0.5).cuda()
    x = torch.randn(20_000, 256, device="cuda")
    model(x, graph).sum().backward()
    before = torch.cuda.memory_allocated()
    logits = model(x, graph)
    kept = torch.cuda.memory_allocated() - before - logits.nbytes
    # Two dense matrices a layer (the aggregate, and what the norm reads) and the norm of the last.
    assert kept < (2 * 3 + 1.5) * x.nbytes
