"""LayerNorm followed by MaxK in plain PyTorch: the definition, and its gradient."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from maxk.ops.maxk import reference
from maxk.ops.spmm.reference import accumulation_dtype


def select(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Values and columns [N, k] of the normalised rows; mean and 1 / deviation of x, [N]."""
    dtype = accumulation_dtype(x.dtype)
    wide = x.to(dtype)
    rows = F.layer_norm(wide, x.shape[1:], weight.to(dtype), bias.to(dtype), eps)
    values, columns = reference.select(rows.to(x.dtype), k)
    mean = wide.mean(1, keepdim=True)
    rstd = ((wide - mean).square().mean(1) + eps).rsqrt()
    return values, columns, mean[:, 0], rstd


def grad(
    upstream: Tensor, columns: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x [N, D], weight [D] and bias [D]."""
    dtype = accumulation_dtype(x.dtype)
    g = reference.scatter(upstream.to(dtype), columns, x.shape[1])
    n = (x.to(dtype) - mean[:, None]) * rstd[:, None]
    t = g * weight.to(dtype)
    dx = rstd[:, None] * (t - t.mean(1, True) - n * (t * n).mean(1, True))
    return dx.to(x.dtype), (g * n).sum(0).to(weight.dtype), g.sum(0).to(weight.dtype)
