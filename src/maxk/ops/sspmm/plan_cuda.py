"""Which variant of SSpMM a GPU runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from maxk.device.kernel import Macros
from maxk.device.properties import DeviceProperties
from maxk.ops.shape import VALUE_CODES, EdgeCounts, FeatureShape, warps_that_fit


@dataclass(frozen=True)
class CudaPlan:
    """One choice and its reason.

    Attributes:
        kernel: "scatter" adds every edge's k entries in the L2, "gather" sums over the transpose in
            a fixed order, "dense" multiplies dense rows and picks.
        vector: entries that a lane adds at once.
        warps: warps a block.
        unroll: edges' entries in flight a lane.
        staged: whether a target's gradient lies in shared memory.
        reason: why, in words.
    """

    kernel: Literal["scatter", "gather", "dense"]
    reason: str
    vector: int = 1
    warps: int = 4
    unroll: int = 4
    staged: bool = True

    def shared_bytes(self, width: int) -> int:
        """Dynamic shared memory of a block."""
        return self.warps * (-(-width // 4) * 16) if self.staged else 0

    def macros(self, shape: FeatureShape) -> Macros:
        """Values that specialise the main kernel."""
        common = (*base_macros(shape), ("WARPS", self.warps))
        if self.kernel == "gather":
            return (*common, ("GROUPS", groups_for(shape.k)), ("GATHER", 1))
        staged = (("STAGED", 1),) if self.staged else ()
        return (*common, ("VECTOR", self.vector), ("UNROLL", self.unroll), *staged)


def base_macros(shape: FeatureShape) -> Macros:
    """What every kernel of this operation is specialised by."""
    return (
        ("VALUE", shape.value_code), ("COLUMN_BYTES", shape.column_bytes), ("WIDTH", shape.width),
        ("K", shape.k),
    )  # fmt: skip


def groups_for(k: int) -> int:
    """Edges that a warp takes side by side, with one lane an entry."""
    return max(1, 32 // (1 << (k - 1).bit_length()))


# A target's gradient of 8192 floats takes 32 KiB a warp.
WIDEST_STAGED = 8192


def plan_cuda(
    graph: EdgeCounts, shape: FeatureShape, device: DeviceProperties, *,
    deterministic: bool | None = None,
) -> CudaPlan:  # fmt: skip
    """Chooses the variant for a graph, a feature shape and a device.

    Args:
        graph: numbers of nodes and edges.
        shape: of the features whose gradient is asked for; dtype of the incoming gradient.
        device: the GPU.
        deterministic: whether results must repeat bit by bit; torch's current switch if None.
    """
    if shape.dtype not in VALUE_CODES:
        return CudaPlan("dense", f"no kernel for {shape.dtype}")
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    if deterministic:
        return CudaPlan("gather", "deterministic algorithms", staged=False)
    staged = shape.width <= WIDEST_STAGED
    vector = 1
    if device.vector_reductions:
        vector = 4 if shape.k % 4 == 0 else 2 if shape.k % 2 == 0 else 1
    warps = warps_that_fit(shape.width * 4, 4) if staged else 4
    return CudaPlan("scatter", f"{4 * vector}-byte reductions", vector, warps, 4, staged)
