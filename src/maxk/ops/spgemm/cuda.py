"""SpGEMM on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from maxk.device.kernel import Kernel, Macros, Spec, aligned, kernel
from maxk.graph.adjacency import Adjacency
from maxk.ops.operands_cuda import edge_indices, floats, fold_blocks, workspace
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
    return run(
        plan_cuda(adjacency, shape, weighted=weight is not None),
        adjacency,
        weight,
        values,
        columns,
        width,
    )


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
    indices, weight = edge_indices(adjacency.indices), floats(weight)
    row_scale, column_scale = floats(adjacency.row_scale), floats(adjacency.column_scale)
    partial = workspace(schedule, width, device)
    weighted = weight is not None or column_scale is not None
    kernels = _kernels(plan, shape, weighted, device)
    blocks = -(-schedule.num_pieces // (plan.warps * plan.pieces))
    shared = plan.shared_bytes
    if plan.kernel == "fixed":
        room, words, header = _pack(kernels, values, columns, column_scale)
        kernels.main(
            blocks, plan.warps, schedule.pieces, schedule.num_pieces, indices, words, header,
            values, columns, column_scale, row_scale, y, partial, adjacency.num_edges,
            shared=shared,
        )  # fmt: skip
        del room  # its memory is taken again only by what this stream does later
    else:
        kernels.main(
            (blocks, -(-width // plan.segment)), plan.warps, schedule.pieces, schedule.num_pieces,
            indices, values, columns, weight, column_scale, row_scale, y, partial, shared=shared,
        )  # fmt: skip
    if partial is not None:
        threads = 8 if width > 128 else 4
        kernels.fold(
            fold_blocks(schedule), threads, schedule.long_rows, schedule.num_long_rows, partial,
            row_scale, y,
        )  # fmt: skip
    return y


@dataclass(frozen=True)
class _Kernels:
    """The loaded kernels of one plan."""

    main: Kernel
    fold: Kernel
    range: Kernel | None = None
    pack: Kernel | None = None


def specs(plan: CudaPlan, shape: FeatureShape, *, weighted: bool) -> dict[str, Spec]:
    """The kernel instances of a plan; ``weighted`` where edges or sources carry a factor."""
    macros = plan.macros(shape)
    fold = Spec(SOURCE, "spgemm_fold", (*base_macros(shape), ("FOLD", 1)))
    if plan.kernel == "float":
        main = Spec(SOURCE, "spgemm_float", macros + ((("WEIGHTED", 1),) if weighted else ()))
        return {"main": main, "fold": fold}
    words: Macros = (*base_macros(shape), *word_macros(shape.width), ("RANGE", 1))
    words += (("SCALED", 1),) if weighted else ()
    return {
        "main": Spec(SOURCE, "spgemm_fixed", macros),
        "fold": fold,
        "range": Spec(SOURCE, "spgemm_range", words),
        "pack": Spec(SOURCE, "spgemm_pack", words),
    }


_SIGNATURES = {"range": "pplp", "pack": "ppplpipp", "fold": "pippp"}


@lru_cache(maxsize=256)
def _kernels(plan: CudaPlan, shape: FeatureShape, weighted: bool, device: torch.device) -> _Kernels:
    signatures = {**_SIGNATURES, "main": "plpppppppppl" if plan.kernel == "fixed" else "plpppppppp"}
    return _Kernels(**{
        name: kernel(spec, signatures[name], device, plan.shared_bytes if name == "main" else 0)
        for name, spec in specs(plan, shape, weighted=weighted).items()
    })  # fmt: skip


def _pack(
    kernels: _Kernels, values: Tensor, columns: Tensor, column_scale: Tensor | None
) -> tuple[Tensor, int, int]:
    """Fixed-point words of all rows.

    Returns:
        The memory that holds all of it; the address of the words, int32 [N, k rounded up to a
        multiple of 4]; the address of their header, int32 [2]: whether the floats must be used
        instead, and the bits of a step's size.
    """
    assert kernels.range is not None and kernels.pack is not None
    rows, k = values.shape
    size = rows * (-(-k // 4) * 4)
    room = torch.empty(size + 2 + 2 * RANGE_BLOCKS, dtype=torch.int32, device=values.device)
    words = room.data_ptr()
    header = words + 4 * size
    parts = header + 8
    blocks = max(1, min(RANGE_BLOCKS, rows * k // 4096))
    kernels.range(blocks, 16, values, column_scale, rows, parts)
    kernels.pack(
        max(1, min(PACK_BLOCKS, size // 1024)), 8, values, columns, column_scale, rows, parts,
        blocks, header, words,
    )  # fmt: skip
    return room, words, header
