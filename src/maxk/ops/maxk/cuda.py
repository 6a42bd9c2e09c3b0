"""MaxK on a GPU."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from maxk.cbsr import column_dtype, largest_columns
from maxk.device.kernel import Kernel, Spec, aligned, kernel
from maxk.ops.maxk.plan_cuda import CudaPlan, plan_cuda
from maxk.ops.operands_cuda import floats
from maxk.ops.shape import VALUE_CODES, FeatureShape, warps_that_fit

SOURCE = Path(__file__).with_name("kernel.cu")
#: Columns of a row that one warp scatters.
SEGMENT = 1024
#: Blocks that fill any GPU; each takes several entries a thread.
ADD_BLOCKS = 4096


def select(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and columns [N, k] of the k largest entries of every row of x [N, D]."""
    rows, width = x.shape
    shape = FeatureShape(width, k, x.dtype)
    plan = plan_cuda(shape)
    if plan.kernel == "reference":
        columns = largest_columns(x, k)
        return x.gather(1, columns), columns.to(column_dtype(width))
    x = aligned(x)
    values = torch.empty(rows, k, dtype=x.dtype, device=x.device)
    kept = torch.empty(rows, k, dtype=column_dtype(width), device=x.device)
    run = _select_kernel(plan, shape, x.device)
    run(-(-rows // plan.warps), plan.warps, x, rows, values, kept)
    return values, kept


def select_spec(plan: CudaPlan, shape: FeatureShape) -> Spec:
    """The select's instance."""
    entry = "maxk_select" if plan.kernel == "registers" else "maxk_select_stream"
    return Spec(SOURCE, entry, plan.macros(shape))


@lru_cache(maxsize=256)
def _select_kernel(plan: CudaPlan, shape: FeatureShape, device: torch.device) -> Kernel:
    return kernel(select_spec(plan, shape), "plpp", device)


@lru_cache(maxsize=256)
def scatter_spec(shape: FeatureShape) -> tuple[Spec, int, int]:
    """The scatter's instance, its warps a block and its segments a row."""
    segment = min(shape.width, SEGMENT)
    warps = warps_that_fit(segment * shape.value_bytes, 8)
    macros = (
        ("VALUE", shape.value_code), ("COLUMN_BYTES", shape.column_bytes), ("WIDTH", shape.width),
        ("K", shape.k), ("WARPS", warps), ("SEGMENT", segment),
    )  # fmt: skip
    return Spec(SOURCE, "maxk_scatter", macros), warps, -(-shape.width // segment)


def scatter(values: Tensor, columns: Tensor, width: int) -> Tensor:
    """Dense [N, D] of CBSR entries."""
    rows, k = values.shape
    if values.dtype not in VALUE_CODES:
        return values.new_zeros(rows, width).scatter_(1, columns.long(), values)
    dense = torch.empty(rows, width, dtype=values.dtype, device=values.device)
    spec, warps, segments = scatter_spec(FeatureShape(width, k, values.dtype))
    kernel(spec, "pplp", values.device)(
        (-(-rows // warps), segments), warps, values, columns, rows, dense
    )
    return dense


def add(y: Tensor, values: Tensor, columns: Tensor, scale: Tensor) -> None:
    """Adds ``scale`` [1] times the entries to y [N, D], in place."""
    if y.dtype not in VALUE_CODES or values.dtype != y.dtype:
        y.scatter_add_(1, columns.long(), (values * scale).to(y.dtype))
        return
    spec = add_spec(FeatureShape(y.shape[1], values.shape[1], y.dtype))
    blocks = min(-(-values.numel() // 256), ADD_BLOCKS)
    kernel(spec, "pplpp", y.device)(blocks, 8, values, columns, values.numel(), floats(scale), y)


def add_spec(shape: FeatureShape) -> Spec:
    """The instance that adds entries in place."""
    macros = (
        ("VALUE", shape.value_code), ("COLUMN_BYTES", shape.column_bytes), ("WIDTH", shape.width),
        ("K", shape.k), ("WARPS", 8), ("ADD", 1),
    )  # fmt: skip
    return Spec(SOURCE, "maxk_add", macros)
