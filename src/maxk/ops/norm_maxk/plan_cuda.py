"""Which variant of LayerNorm and MaxK a GPU runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from maxk.device.kernel import Macros
from maxk.ops.shape import VALUE_CODES, FeatureShape


@dataclass(frozen=True)
class CudaPlan:
    """One choice and its reason.

    Attributes:
        kernel: "fused" keeps a row in one warp's registers, "apart" runs torch's LayerNorm, then
            MaxK.
        warps: warps a block.
        reason: why, in words.
    """

    kernel: Literal["fused", "apart"]
    warps: int
    reason: str

    def macros(self, shape: FeatureShape) -> Macros:
        """Values that specialise both kernels."""
        return (
            ("VALUE", shape.value_code), ("COLUMN_BYTES", shape.column_bytes),
            ("WIDTH", shape.width), ("K", shape.k), ("WARPS", self.warps),
        )  # fmt: skip


# The gradient keeps five numbers a column in registers: 80 registers a lane at D = 512.
WIDEST_FUSED = 512
WARPS = 8
# Blocks of the gradient a multiprocessor: each adds a part of 2 D sums to be added up.
GRAD_BLOCKS = 4


@lru_cache(maxsize=256)
def plan_cuda(shape: FeatureShape) -> CudaPlan:
    """Chooses the variant for a feature shape."""
    if shape.dtype not in VALUE_CODES:
        return CudaPlan("apart", 0, f"no kernel for {shape.dtype}")
    if shape.width > WIDEST_FUSED:
        return CudaPlan("apart", 0, f"D = {shape.width} is above {WIDEST_FUSED}")
    return CudaPlan("fused", WARPS, f"D = {shape.width} fits a warp's registers")
