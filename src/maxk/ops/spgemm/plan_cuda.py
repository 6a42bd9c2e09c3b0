"""Which variant of SpGEMM a GPU runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from maxk.device.kernel import Macros
from maxk.graph.schedule import PIECE_EDGES
from maxk.ops.shape import VALUE_CODES, EdgeCounts, FeatureShape, mean_degree, warps_that_fit


@dataclass(frozen=True)
class CudaPlan:
    """One choice and its reason.

    Attributes:
        kernel: "fixed" adds fixed-point words, "float" adds the values, "dense" scatters first and
            multiplies dense rows.
        copies: accumulators a column.
        warps: warps a block.
        unroll: 16-byte loads in flight a lane.
        segment: columns that a warp accumulates at once; below D the edges are read several times.
        reason: why, in words.
    """

    kernel: Literal["fixed", "float", "dense"]
    reason: str
    copies: int = 1
    warps: int = 4
    unroll: int = 4
    segment: int = 0

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return self.warps * (-(-self.segment * self.copies // 4) * 16)

    def macros(self, shape: FeatureShape) -> Macros:
        """Values that specialise the main kernel."""
        fixed = word_macros(shape.width) if self.kernel == "fixed" else ()
        return (
            *base_macros(shape), ("COPIES", self.copies), ("WARPS", self.warps),
            ("UNROLL", self.unroll), ("SEGMENT", self.segment), *fixed,
        )  # fmt: skip


def base_macros(shape: FeatureShape) -> Macros:
    """What every kernel of this operation is specialised by."""
    return (
        ("VALUE", shape.value_code), ("COLUMN_BYTES", shape.column_bytes), ("WIDTH", shape.width),
        ("K", shape.k),
    )  # fmt: skip


def word_macros(width: int) -> Macros:
    """How a fixed-point word of 32 bits is split, and its largest value.

    A piece's sum, PIECE_EDGES values of at most LIMIT, stays inside 31 bits.
    """
    bits = max(8, (width - 1).bit_length())
    limit = min(1 << (31 - bits), (1 << 31) // PIECE_EDGES) - 1
    return (("COLUMN_BITS", bits), ("LIMIT", limit))


# 20 bits of value are left at D = 4096: 2e-6 of the largest value.
WIDEST_FIXED = 4096
# 32 KiB of accumulators a warp.
WIDEST_SEGMENT = 8192


def plan_cuda(
    graph: EdgeCounts, shape: FeatureShape, *, weighted: bool = False, precision: str | None = None
) -> CudaPlan:
    """Chooses the variant for a graph and a feature shape.

    Args:
        graph: numbers of nodes and edges.
        shape: of the features.
        weighted: whether edges carry weights.
        precision: a word of ``torch.set_float32_matmul_precision``; the current one if None.
    """
    if shape.dtype not in VALUE_CODES:
        return CudaPlan("dense", f"no kernel for {shape.dtype}")
    precision = precision or torch.get_float32_matmul_precision()
    degree = mean_degree(graph)
    segment = min(shape.width, WIDEST_SEGMENT)
    fixed = precision != "highest" and not weighted and shape.width <= WIDEST_FIXED
    copies = 4 if degree >= 128 and shape.width <= 512 else 2 if degree >= 16 and shape.width <= 512 else 1
    warps = warps_that_fit(segment * copies * 4, 4)
    if fixed:
        return CudaPlan("fixed", f"precision {precision!r}", copies, warps, 4, segment)
    why = "edge weights" if weighted else f"D = {shape.width}" if precision != "highest" else "precision 'highest'"
    return CudaPlan("float", why, copies, warps, 4, segment)
