"""LayerNorm and MaxK one after the other: torch's LayerNorm beside a device's MaxK.

The normalised rows live until MaxK has read them; the gradient makes them again.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from maxk.ops.spmm.reference import accumulation_dtype


class MaxK(Protocol):
    """A module that implements MaxK on a device."""

    def select(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Values and columns."""

    def scatter(self, values: Tensor, columns: Tensor, width: int) -> Tensor:
        """CBSR entries to dense."""


def select(
    maxk: MaxK, x: Tensor, weight: Tensor, bias: Tensor, eps: float, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Values and columns [N, k] of the normalised rows; mean and 1 / deviation of x, [N]."""
    dtype = accumulation_dtype(x.dtype)
    rows, mean, rstd = torch.native_layer_norm(
        x.to(dtype), x.shape[1:], weight.to(dtype), bias.to(dtype), eps
    )
    values, columns = maxk.select(rows.to(x.dtype), k)
    return values, columns, mean.flatten(), rstd.flatten()


def grad(
    maxk: MaxK, upstream: Tensor, columns: Tensor, x: Tensor, mean: Tensor, rstd: Tensor,
    weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x [N, D], weight [D] and bias [D]."""
    dtype = accumulation_dtype(x.dtype)
    dense = maxk.scatter(upstream.to(dtype), columns, x.shape[1])
    wide = weight.to(dtype)
    dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(
        dense, x.to(dtype), x.shape[1:], mean[:, None], rstd[:, None], wide, wide, [True] * 3
    )
    return dx.to(x.dtype), dweight.to(weight.dtype), dbias.to(weight.dtype)
