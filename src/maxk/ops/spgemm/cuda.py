"""SpGEMM on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from maxk.device.kernel import Macros, Spec, aligned, kernel
from maxk.graph.adjacency import Adjacency
from maxk.ops.operands_cuda import edge_indices, floats, workspace
from maxk.ops.shape import FeatureShape
from maxk.ops.spgemm.plan_cuda import CudaPlan, base_macros, plan_cuda, word_macros

SOURCE = Path(__file__).with_name("kernel.cu")
#: Blocks that look for the largest value; each thread of a packing block reads one block's result.
RANGE_BLOCKS = 256
PACK_BLOCKS = 2048


def spgemm(
    adjacency: Adjacency, weight: Tensor | None, values: Tensor, columns: Tensor, width: int
) -> Tensor:
    """Forward aggregation of CBSR features, [M, D]."""
    shape = FeatureShape(width, values.shape[1], values.dtype)
    return run(plan_cuda(adjacency, shape, weighted=weight is not None), adjacency, weight, values, columns, width)


def run(
    plan: CudaPlan, adjacency: Adjacency, weight: Tensor | None, values: Tensor, columns: Tensor,
    width: int,
) -> Tensor:  # fmt: skip
    """The same by a given plan."""
    if plan.kernel == "dense":
        from maxk.ops.maxk.cuda import scatter
        from maxk.ops.spmm.cuda import spmm

        return spmm(adjacency, weight, scatter(values, columns, width))
    y = torch.empty(adjacency.num_dst, width, dtype=values.dtype, device=values.device)
    if adjacency.num_edges == 0 or y.numel() == 0:
        return y.zero_()
    shape = FeatureShape(width, values.shape[1], values.dtype)
    device, schedule = values.device, adjacency.schedule
    values, columns = aligned(values), aligned(columns)
    indices = edge_indices(adjacency.indices)
    row_scale, column_scale = floats(adjacency.row_scale), floats(adjacency.column_scale)
    partial = workspace(schedule, width, device)
    macros = plan.macros(shape)
    blocks = -(-schedule.num_pieces // plan.warps)
    if plan.kernel == "fixed":
        words = _pack(shape, values, columns, column_scale)
        main = kernel(Spec(SOURCE, "spgemm_fixed", macros), "plppppppppp", device, plan.shared_bytes)
        main(
            blocks, plan.warps, schedule.pieces, schedule.num_pieces, indices, words.words,
            words.header, values, columns, column_scale, row_scale, y, partial,
            shared=plan.shared_bytes,
        )  # fmt: skip
    else:
        weighted: Macros = (("WEIGHTED", 1),) if weight is not None or column_scale is not None else ()
        main = kernel(Spec(SOURCE, "spgemm_float", macros + weighted), "plpppppppp", device, plan.shared_bytes)
        main(
            (blocks, -(-width // plan.segment)), plan.warps, schedule.pieces, schedule.num_pieces,
            indices, values, columns, floats(weight), column_scale, row_scale, y, partial,
            shared=plan.shared_bytes,
        )  # fmt: skip
    fold = kernel(Spec(SOURCE, "spgemm_fold", (*base_macros(shape), ("FOLD", 1))), "pppp", device)
    fold(schedule.num_long_rows, 8 if width > 128 else 4, schedule.long_rows, partial, row_scale, y)
    return y


@dataclass(frozen=True)
class Words:
    """Features as fixed-point words.

    Attributes:
        words: int32 [N, k rounded up to a multiple of 4].
        header: int32 [2]: whether the floats must be used instead; the bits of a step's size.
    """

    words: Tensor
    header: Tensor


def pack_macros(shape: FeatureShape, *, scaled: bool) -> Macros:
    """Values that specialise the two kernels that make words."""
    macros = (*base_macros(shape), *word_macros(shape.width), ("RANGE", 1))
    return (*macros, ("SCALED", 1)) if scaled else macros


def _pack(shape: FeatureShape, values: Tensor, columns: Tensor, column_scale: Tensor | None) -> Words:
    rows, k = values.shape
    device = values.device
    words = torch.empty(rows, -(-k // 4) * 4, dtype=torch.int32, device=device)
    header = torch.empty(2, dtype=torch.int32, device=device)
    blocks = max(1, min(RANGE_BLOCKS, rows * k // 4096))
    parts = torch.empty(blocks, 2, dtype=torch.int32, device=device)
    macros = pack_macros(shape, scaled=column_scale is not None)
    kernel(Spec(SOURCE, "spgemm_range", macros), "pplp", device)(
        blocks, 16, values, column_scale, rows, parts
    )
    kernel(Spec(SOURCE, "spgemm_pack", macros), "ppplpipp", device)(
        max(1, min(PACK_BLOCKS, words.numel() // 1024)), 8,
        values, columns, column_scale, rows, parts, blocks, header, words,
    )  # fmt: skip
    return Words(words, header)
