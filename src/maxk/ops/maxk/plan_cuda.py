"""Which variant of MaxK a GPU runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from maxk.device.kernel import Macros
from maxk.ops.shape import VALUE_CODES, FeatureShape, warps_that_fit


@dataclass(frozen=True)
class CudaPlan:
    """One choice and its reason.

    Attributes:
        kernel: "registers" keeps a row in one warp's registers, "stream" reads it again for every
            count, "reference" is plain PyTorch.
        warps: warps a block.
        reason: why, in words.
    """

    kernel: Literal["registers", "stream", "reference"]
    warps: int
    reason: str

    def macros(self, shape: FeatureShape) -> Macros:
        """Values that specialise the kernel."""
        name = "SELECT" if self.kernel == "registers" else "STREAM"
        return (
            ("VALUE", shape.value_code), ("COLUMN_BYTES", shape.column_bytes),
            ("WIDTH", shape.width), ("K", shape.k), ("WARPS", self.warps), (name, 1),
        )  # fmt: skip


# 64 keys a lane take 80 registers; 128 would leave 12 warps a multiprocessor.
WIDEST_IN_REGISTERS = 2048


@lru_cache(maxsize=256)
def plan_cuda(shape: FeatureShape) -> CudaPlan:
    """Chooses the variant for a feature shape."""
    if shape.dtype not in VALUE_CODES:
        return CudaPlan("reference", 0, f"no kernel for {shape.dtype}")
    if shape.width > WIDEST_IN_REGISTERS:
        return CudaPlan("stream", 8, f"D = {shape.width} is above {WIDEST_IN_REGISTERS}")
    warps = warps_that_fit(2 * shape.k + 2, 8)
    return CudaPlan("registers", warps, f"D = {shape.width} fits a warp's registers")
