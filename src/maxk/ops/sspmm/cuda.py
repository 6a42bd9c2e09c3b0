"""SSpMM and the gradient of edge weights on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from maxk.device.kernel import Kernel, Spec, aligned, kernel
from maxk.device.properties import properties
from maxk.graph.adjacency import Adjacency
from maxk.ops.operands_cuda import edge_indices, floats, fold_blocks, workspace
from maxk.ops.shape import VALUE_CODES, FeatureShape, warps_that_fit
from maxk.ops.sspmm.panels import panels_of
from maxk.ops.sspmm.plan_cuda import WIDEST_STAGED, CudaPlan, base_macros, groups_for, plan_cuda

SOURCE = Path(__file__).with_name("kernel.cu")


def sspmm(adjacency: Adjacency, weight: Tensor | None, grad: Tensor, columns: Tensor) -> Tensor:
    """Gradient of CBSR values, [N, k]."""
    shape = FeatureShape(grad.shape[1], columns.shape[1], grad.dtype)
    return run(
        plan_cuda(adjacency, shape, properties(grad.device)), adjacency, weight, grad, columns
    )


def run(
    plan: CudaPlan, adjacency: Adjacency, weight: Tensor | None, grad: Tensor, columns: Tensor
) -> Tensor:
    """The same by a given plan."""
    rows, k = columns.shape
    shape = FeatureShape(grad.shape[1], k, grad.dtype)
    device = grad.device
    if adjacency.num_edges == 0 or columns.numel() == 0:
        return torch.zeros(rows, k, dtype=grad.dtype, device=device)
    columns = aligned(columns)
    if plan.kernel == "dense":
        from maxk.ops.spmm.cuda import spmm_t

        return pick(spmm_t(adjacency, weight, grad), columns)
    grad = aligned(grad)
    row_scale, column_scale = floats(adjacency.row_scale), floats(adjacency.column_scale)
    kernels = _kernels(plan, shape, weight is not None, device)
    if plan.kernel == "gather":
        schedule = adjacency.t_schedule
        out = torch.empty(rows, k, dtype=grad.dtype, device=device)
        partial = workspace(schedule, k, device)
        kernels.main(
            -(-schedule.num_pieces // plan.warps), plan.warps, schedule.pieces,
            schedule.num_pieces, edge_indices(adjacency.t_indices), adjacency.t_edges, grad,
            columns, floats(weight), row_scale, column_scale, out, partial,
        )  # fmt: skip
        kernels.last(
            fold_blocks(schedule), 2, schedule.long_rows, schedule.num_long_rows, partial,
            column_scale, out,
        )  # fmt: skip
        return out
    indices, schedule = adjacency.indices, adjacency.schedule
    if plan.panels > 1:
        panels = panels_of(adjacency, plan.panels)
        indices, schedule = panels.indices, panels.schedule
        weight = None if weight is None else weight[panels.edges]
    sums = torch.zeros(rows, k, dtype=torch.float32, device=device)
    shared = plan.shared_bytes(shape.width)
    kernels.main(
        -(-schedule.num_pieces // plan.warps), plan.warps, schedule.pieces, schedule.num_pieces,
        edge_indices(indices), grad, columns, floats(weight), row_scale, sums,
        adjacency.num_dst, shared=shared,
    )  # fmt: skip
    if grad.dtype == torch.float32 and column_scale is None:
        return sums
    out = sums if grad.dtype == torch.float32 else torch.empty_like(sums, dtype=grad.dtype)
    kernels.last(_blocks(sums.numel()), 8, sums, column_scale, rows, out)
    return out


@dataclass(frozen=True)
class _Kernels:
    """The loaded kernels of one plan: what sums, and what folds or converts the sums."""

    main: Kernel
    last: Kernel


def specs(plan: CudaPlan, shape: FeatureShape, *, weighted: bool) -> tuple[Spec, Spec]:
    """The two kernel instances of a plan."""
    macros = plan.macros(shape) + ((("WEIGHTED", 1),) if weighted else ())
    if plan.kernel == "gather":
        return Spec(SOURCE, "sspmm_gather", macros), Spec(SOURCE, "sspmm_fold", macros)
    finish = Spec(SOURCE, "sspmm_finish", (*base_macros(shape), ("FINISH", 1)))
    return Spec(SOURCE, "sspmm_scatter", macros), finish


@lru_cache(maxsize=256)
def _kernels(plan: CudaPlan, shape: FeatureShape, weighted: bool, device: torch.device) -> _Kernels:
    main, last = specs(plan, shape, weighted=weighted)
    if plan.kernel == "gather":
        return _Kernels(kernel(main, "plppppppppp", device), kernel(last, "pippp", device))
    shared = plan.shared_bytes(shape.width)
    return _Kernels(kernel(main, "plppppppi", device, shared), kernel(last, "pplp", device))


def sddmm(adjacency: Adjacency, values: Tensor, columns: Tensor, grad: Tensor) -> Tensor:
    """Gradient of the edge weights, [E] in CSR order, float32 (float64 beside float64 values)."""
    if values.dtype not in VALUE_CODES:
        from maxk.ops.sspmm import reference

        return reference.sddmm(adjacency, values, columns, grad)
    device = grad.device
    out = torch.empty(adjacency.num_edges, dtype=torch.float32, device=device)
    if out.numel() == 0 or values.numel() == 0:
        return out.zero_()
    shape = FeatureShape(grad.shape[1], values.shape[1], values.dtype)
    spec, warps, shared = sddmm_spec(shape)
    schedule = adjacency.schedule
    kernel(spec, "plppppppp", device, shared)(
        -(-schedule.num_pieces // warps), warps, schedule.pieces, schedule.num_pieces,
        edge_indices(adjacency.indices), aligned(grad), values, columns,
        floats(adjacency.row_scale), floats(adjacency.column_scale), out, shared=shared,
    )  # fmt: skip
    return out


@lru_cache(maxsize=256)
def sddmm_spec(shape: FeatureShape) -> tuple[Spec, int, int]:
    """The instance, its warps a block and its shared bytes."""
    staged = shape.width <= WIDEST_STAGED
    warps = warps_that_fit(shape.width * 4, 4) if staged else 4
    macros = (
        *base_macros(shape), ("WARPS", warps), ("GROUPS", max(2, groups_for(shape.k))),
        ("SDDMM", 1),
        *((("STAGED", 1),) if staged else ()),
    )  # fmt: skip
    return (
        Spec(SOURCE, "sspmm_sddmm", macros),
        warps,
        warps * (-(-shape.width // 4) * 16) if staged else 0,
    )


def pick(dense: Tensor, columns: Tensor) -> Tensor:
    """dense[i, columns[i, j]], [N, k]: the adjoint of MaxK's scatter."""
    if dense.dtype not in VALUE_CODES:
        return dense.gather(1, columns.long())
    out = torch.empty(columns.shape, dtype=dense.dtype, device=dense.device)
    if out.numel() == 0:
        return out
    shape = FeatureShape(dense.shape[1], columns.shape[1], dense.dtype)
    spec = Spec(SOURCE, "sspmm_pick", (*base_macros(shape), ("PICK", 1)))
    kernel(spec, "pplp", dense.device)(_blocks(out.numel()), 8, dense, columns, out.shape[0], out)
    return out


def _blocks(items: int) -> int:
    return max(1, min(4096, -(-items // 256)))
