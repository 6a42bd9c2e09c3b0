"""LayerNorm and MaxK on the CPU, one after the other."""

from __future__ import annotations

from torch import Tensor

from maxk.ops.maxk import cpu
from maxk.ops.norm_maxk import apart


def select(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Values and columns [N, k] of the normalised rows; mean and 1 / deviation of x, [N]."""
    return apart.select(cpu, x, weight, bias, eps, k)


def grad(
    upstream: Tensor, columns: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x [N, D], weight [D] and bias [D]."""
    return apart.grad(cpu, upstream, columns, x, mean, rstd, weight)
