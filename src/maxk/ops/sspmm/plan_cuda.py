"""Which variant of SSpMM a GPU runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from maxk.device.kernel import Macros
from maxk.device.properties import DeviceProperties
from maxk.ops.shape import VALUE_CODES, EdgeCounts, FeatureShape, mean_degree, warps_that_fit


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
        blocks: blocks a multiprocessor that registers must leave room for.
        panels: panels of sources that are taken one after the other.
        reason: why, in words.
    """

    kernel: Literal["scatter", "gather", "dense"]
    reason: str
    vector: int = 1
    warps: int = 4
    unroll: int = 4
    staged: bool = True
    blocks: int = 1
    panels: int = 1

    def shared_bytes(self, width: int) -> int:
        """Dynamic shared memory of a block."""
        return self.warps * (-(-width // 4) * 16) if self.staged else 0

    def macros(self, shape: FeatureShape) -> Macros:
        """Values that specialise the main kernel."""
        common = (*base_macros(shape), ("WARPS", self.warps))
        if self.kernel == "gather":
            return (*common, ("GROUPS", groups_for(shape.k)), ("GATHER", 1))
        staged = (("STAGED", 1),) if self.staged else ()
        panels = (("PANELS", 1),) if self.panels > 1 else ()
        return (
            *common, ("VECTOR", self.vector), ("UNROLL", self.unroll), ("MIN_BLOCKS", self.blocks),
            *staged, *panels,
        )  # fmt: skip


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
    degree, share = mean_degree(graph), shape.k / shape.width
    limit = largest_share(degree)
    if share > limit:
        return CudaPlan("dense", f"k/D = {share:.2f} is above {limit} at {degree:.0f} edges a row")
    staged = shape.width <= WIDEST_STAGED
    vector = 1
    if device.vector_reductions:
        vector = 4 if shape.k % 4 == 0 else 2 if shape.k % 2 == 0 else 1
    warps = warps_that_fit(shape.width * 4, 2) if staged else 2
    # H200, D = 256, ms with 4 loads and 16 blocks against 2 and 20: 3.73 / 3.82 at 435 edges a row
    # and k = 32, but 0.475 / 0.437 at 19 and k = 8.
    unroll, blocks = (4, 16) if degree >= 128 and shape.k >= 16 else (2, 20)
    panels = panels_for(graph, shape, device)
    why = f"{4 * vector}-byte reductions, {panels} panel{'s' if panels > 1 else ''}"
    return CudaPlan("scatter", why, vector, warps, unroll, staged, blocks, panels)


def largest_share(degree: float) -> float:
    """k/D above which the dense product, then picked from, is faster.

    H200, D = 256, times over cuSPARSE at k = 96 / 128 / 192: 1.60 / 1.22 / 0.75 at 435 edges a row,
    1.00 / 0.80 / 0.51 at 50 (2.4 M nodes), 1.22 / 0.95 / 0.59 at 19, 1.42 / 1.15 / 0.80 at 10.
    """
    if degree >= 128:
        return 0.6
    if degree >= 32:
        return 0.35
    return 0.45 if degree >= 16 else 0.6


def panels_for(graph: EdgeCounts, shape: FeatureShape, device: DeviceProperties) -> int:
    """Panels of sources whose sums fit half of the L2 each.

    A panel more reads the incoming gradient once more, and saves the device memory traffic of sums
    outside the L2: it must have edges enough a row.

    H200 (60 MB of L2), D = 256, ms with 1 / 2 / 4 panels: 9.7 / 7.4 / 7.6 at 60 MB of sums and 435
    edges a row; 6.1 / 4.5 / 4.6 at 78 MB and 50 edges; 13.3 / 12.1 / 11.1 (8: 12.9) at 313 MB and
    50; 1.26 / 1.20 / 1.69 at 92 MB and 19; 0.75 / 0.94 / 1.54 at 46 MB and 19 (k = 16); 0.26 / 0.21
    at 46 MB and 10 (k = 128).
    """
    degree = mean_degree(graph)
    reuse = degree * shape.k / shape.width
    share = graph.num_src * shape.k * 4 / (device.l2_bytes / 2)
    wanted = math.ceil(share) if degree >= 32 or reuse >= 3 else int(share)
    return max(1, min(wanted, int(max(degree / 8, 0.7 * reuse)), 8))
