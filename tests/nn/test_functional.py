"""Features without parameters: linear layers of aligned rows."""

from __future__ import annotations

import pytest
import torch

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
