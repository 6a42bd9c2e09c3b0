"""LayerNorm and MaxK on a GPU."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from maxk.cbsr import column_dtype
from maxk.device.kernel import Kernel, Spec, kernel
from maxk.device.properties import properties
from maxk.ops.maxk import cuda
from maxk.ops.norm_maxk import apart
from maxk.ops.norm_maxk.plan_cuda import GRAD_BLOCKS, CudaPlan, plan_cuda
from maxk.ops.operands_cuda import floats
from maxk.ops.shape import FeatureShape

SOURCE = Path(__file__).with_name("kernel.cu")


def select(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Values and columns [N, k] of the normalised rows; mean and 1 / deviation of x, [N]."""
    rows, width = x.shape
    shape = FeatureShape(width, k, x.dtype)
    plan = plan_cuda(shape)
    if plan.kernel == "apart":
        return apart.select(cuda, x, weight, bias, eps, k)
    values = torch.empty(rows, k, dtype=x.dtype, device=x.device)
    columns = torch.empty(rows, k, dtype=column_dtype(width), device=x.device)
    mean = torch.empty(rows, dtype=torch.float32, device=x.device)
    rstd = torch.empty(rows, dtype=torch.float32, device=x.device)
    _kernels(plan, shape, x.device)[0](
        -(-rows // plan.warps), plan.warps, x, rows, floats(weight), floats(bias), eps, values,
        columns, mean, rstd,
    )  # fmt: skip
    return values, columns, mean, rstd


def grad(
    upstream: Tensor, columns: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x [N, D], weight [D] and bias [D]."""
    rows, width = x.shape
    shape = FeatureShape(width, columns.shape[1], x.dtype)
    plan = plan_cuda(shape)
    if plan.kernel == "apart":
        return apart.grad(cuda, upstream, columns, x, mean, rstd, weight)
    dx = torch.empty_like(x)
    blocks = min(-(-rows // plan.warps), GRAD_BLOCKS * properties(x.device).processors)
    parts = torch.empty(blocks, 2, width, dtype=torch.float32, device=x.device)
    _kernels(plan, shape, x.device)[1](
        blocks, plan.warps, upstream, columns, x, mean, rstd, floats(weight), rows, dx, parts
    )
    sums = parts.sum(0).to(weight.dtype)
    return dx, sums[0].clone(), sums[1].clone()


def specs(plan: CudaPlan, shape: FeatureShape) -> tuple[Spec, Spec]:
    """The instances of the forward and the backward kernel."""
    macros = plan.macros(shape)
    return (
        Spec(SOURCE, "norm_select", (*macros, ("FORWARD", 1))),
        Spec(SOURCE, "norm_select_grad", (*macros, ("BACKWARD", 1))),
    )


@lru_cache(maxsize=256)
def _kernels(plan: CudaPlan, shape: FeatureShape, device: torch.device) -> tuple[Kernel, Kernel]:
    forward, backward = specs(plan, shape)
    return kernel(forward, "plppfpppp", device), kernel(backward, "pppppplpp", device)
