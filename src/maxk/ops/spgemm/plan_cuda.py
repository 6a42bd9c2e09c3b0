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
        loads: loads in flight a lane: of 16 bytes of words, or of single values.
        blocks: blocks a multiprocessor that registers must leave room for.
        segment: columns that a warp accumulates at once; below D the edges are read several times.
        pieces: pieces of rows that a warp takes one after the other, prefetching edges.
        reason: why, in words.
    """

    kernel: Literal["fixed", "float", "dense"]
    reason: str
    copies: int = 1
    warps: int = 4
    loads: int = 4
    segment: int = 0
    blocks: int = 1
    pieces: int = 1

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return self.warps * (-(-self.segment * self.copies // 4) * 16)

    def macros(self, shape: FeatureShape) -> Macros:
        """Values that specialise the main kernel."""
        fixed = word_macros(shape.width) if self.kernel == "fixed" else ()
        return (
            *base_macros(shape), ("COPIES", self.copies), ("WARPS", self.warps),
            ("UNROLL", self.loads), ("SEGMENT", self.segment), ("MIN_BLOCKS", self.blocks),
            ("PIECES", self.pieces), *fixed,
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
    graph: EdgeCounts, shape: FeatureShape, *, weighted: bool = False, precision: str | None = None,
    deterministic: bool | None = None,
) -> CudaPlan:  # fmt: skip
    """Chooses the variant for a graph and a feature shape.

    Args:
        graph: numbers of nodes and edges.
        shape: of the features.
        weighted: whether edges carry weights.
        precision: a word of ``torch.set_float32_matmul_precision``; the current one if None.
        deterministic: whether results must repeat bit by bit, which cuSPARSE does not promise;
            torch's current switch if None.
    """
    if shape.dtype not in VALUE_CODES:
        return CudaPlan("dense", f"no kernel for {shape.dtype}")
    precision = precision or torch.get_float32_matmul_precision()
    fixed = precision != "highest" and not weighted and shape.width <= WIDEST_FIXED
    degree, share = mean_degree(graph), shape.k / shape.width
    limit = largest_share(degree, fixed=fixed)
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    if share > limit and not deterministic:
        return CudaPlan("dense", f"k/D = {share:.2f} is above {limit} at {degree:.0f} edges a row")
    if fixed:
        return _fixed(shape, degree, f"fixed-point words at precision {precision!r}")
    why = "edge weights" if weighted else f"precision {precision!r}, D = {shape.width}"
    return _float(shape, degree, f"floats for {why}")


def largest_share(degree: float, *, fixed: bool) -> float:
    """k/D above which the dense product is faster.

    H200, D = 256, times over cuSPARSE at k = 128 / 192, words: 2.5 / 1.4 at 435 edges a row,
    2.2 / 1.4 at 50, 2.1 / 1.2 at 19, 1.3 / 0.74 at 10. Floats: 1.65 / 0.94 at 435, - / 1.14 at 50,
    - / 1.10 at 19, 1.33 (k = 96) / 0.68 at 10.
    """
    if degree < 16:
        return 0.6 if fixed else 0.45
    if fixed:
        return 0.8
    return 0.6 if degree >= 128 else 0.75


def _fixed(shape: FeatureShape, degree: float, reason: str) -> CudaPlan:
    # H200, D = 256, ms with 1 / 2 / 4 copies at 435 edges a row: 2.19 / 2.02 / 2.00 at k = 32,
    # 5.3 / 5.8 / 7.4 at k = 96; at 50 edges and fewer one copy is never slower.
    copies = 2 if degree >= 128 and shape.k <= 64 and shape.width <= 1024 else 1
    # One / two / four pieces a warp: 0.079 / 0.074 / 0.074 at 10 edges a row,
    # 0.742 / 0.718 / 0.702 at 19, 4.52 / 4.41 / 4.42 at 50.
    pieces = 4 if degree < 32 else 2
    warps = warps_that_fit(shape.width * copies * 4, 2)
    # 20 blocks leave 48 registers; with k = 128 some would be spilled.
    blocks = 20 if shape.k <= 96 else 16
    return CudaPlan("fixed", reason, copies, warps, 4, shape.width, blocks, pieces)


def _float(shape: FeatureShape, degree: float, reason: str) -> CudaPlan:
    # H200, D = 256, ms with 1 / 2 / 4 copies: 4.06 / 2.30 / 1.80 at k = 8 and 435 edges a row,
    # 4.48 / 3.43 / 3.12 at k = 32, 6.29 / 5.69 / 6.59 at k = 64, 9.4 / 10.3 / - at k = 96;
    # 9.7 / 7.1 / 7.4 at k = 32 and 50 edges.
    copies = 4 if shape.k <= (32 if degree >= 128 else 16) else 2 if shape.k <= 64 else 1
    segment = min(shape.width, WIDEST_SEGMENT)
    while copies > 1 and segment * copies > 2048:
        copies //= 2
    if copies > 1:
        return CudaPlan("float", reason, copies, 2, 8, segment, 20)
    return CudaPlan("float", reason, 1, warps_that_fit(segment * 4, 4), 16, segment, 8)
