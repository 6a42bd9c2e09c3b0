"""Features without parameters: linear layers of aligned rows."""

from __future__ import annotations

import pytest
import torch

import maxk
from maxk.nn import functional


def strided(x: torch.Tensor) -> torch.Tensor:
    """What ``aligned`` makes on a GPU of rows of 6 floats, here on any device."""
    rows = torch.zeros(x.shape[0], 8, dtype=x.dtype, device=x.device)[:, :6].copy_(x)
    setattr(rows, functional._ALIGNED, True)
    return rows


@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_linear_of_aligned_rows(place):
    torch.manual_seed(0)
    x = torch.randn(5, 6, dtype=torch.float64, device=place)
    weight = torch.randn(3, 6, dtype=torch.float64, device=place, requires_grad=True)
    bias = torch.randn(3, dtype=torch.float64, device=place, requires_grad=True)
    results = []
    for rows in (x, strided(x)):
        y = functional.linear(rows, weight, bias)
        results.append((y, *torch.autograd.grad(y.sin().sum(), (weight, bias))))
    for plain, padded in zip(*results, strict=True):
        torch.testing.assert_close(plain, padded)


@pytest.mark.gpu
def test_aligned_features_on_a_gpu():
    x = torch.randn(7, 6, device="cuda")
    rows = functional.aligned(x)
    assert torch.equal(rows, x)
    assert rows.stride() == (8, 1)
    assert functional.aligned(x[:, :4]).shape == (7, 4)
    half = functional.aligned(x.half())
    assert half.stride() == (8, 1)
    weight = torch.randn(3, 6, device="cuda")
    torch.testing.assert_close(functional.linear(rows, weight), x @ weight.t())


def test_rows_on_the_cpu_stay_as_they_are():
    x = torch.randn(3, 5)
    assert functional.aligned(x) is x


def test_what_a_hook_keeps_of_a_layer_stays():
    torch.manual_seed(0)
    conv = maxk.nn.SAGEConv(6, 3)
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    x = torch.randn(3, 6)
    kept = []
    conv.lin_l.register_forward_hook(lambda module, inputs, output: kept.append(output))
    for features in (x, maxk.maxk(x, 2)):
        y = conv(features, edges)
        dense = features if features is x else features.to_dense()
        assert torch.equal(kept[-1], conv.lin_l(dense[edges[0, [2, 0, 1]]]))
        torch.testing.assert_close(y, kept[-1] + conv.lin_r(dense))


@pytest.mark.parametrize("p", [0.25, 0.5])
def test_dropout_from_a_generator_is_that_of_torch_from_the_same_state(p: float) -> None:
    x = torch.randn(50, 16, requires_grad=True)
    torch.manual_seed(3)
    expected = torch.nn.functional.dropout(x, p)
    (wanted,) = torch.autograd.grad(expected.sum(), x)
    before = torch.get_rng_state()
    with functional.dropout_from(torch.Generator().manual_seed(3)):
        found = functional.dropout(x, p, True)
        assert functional.dropout(x, p, False) is x
    assert isinstance(found, torch.Tensor)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert torch.equal(found, expected)
    assert torch.equal(gradient, wanted)
    assert torch.equal(torch.get_rng_state(), before)
    # Outside of the block the generator of the process draws again.
    torch.manual_seed(3)
    assert torch.equal(functional.dropout(x, p, True), expected)
