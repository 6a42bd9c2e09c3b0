"""The shape of the features that a plan is made for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

#: How kernels name dtypes (numeric.cuh).
VALUE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


@dataclass(frozen=True)
class FeatureShape:
    """Features [N, D] of which k entries a row are stored.

    Attributes:
        width: D.
        k: stored entries a row.
        dtype: of the values.
    """

    width: int
    k: int
    dtype: torch.dtype

    @property
    def value_code(self) -> int:
        """The dtype as kernels know it."""
        return VALUE_CODES[self.dtype]

    @property
    def value_bytes(self) -> int:
        """Bytes of one value."""
        return self.dtype.itemsize

    @property
    def column_bytes(self) -> int:
        """Bytes of one column id: 1 to D = 256, 2 to 32,768, 4 beyond."""
        return 1 if self.width <= 256 else 2 if self.width <= 32768 else 4


class EdgeCounts(Protocol):
    """What plans read of a graph; both Graph and Adjacency have it."""

    @property
    def num_src(self) -> int:
        """N."""

    @property
    def num_dst(self) -> int:
        """M."""

    @property
    def num_edges(self) -> int:
        """E."""


def mean_degree(graph: EdgeCounts) -> float:
    """Edges a target row."""
    return graph.num_edges / max(graph.num_dst, 1)


def warps_that_fit(bytes_a_warp: int, most: int) -> int:
    """Warps a block, so that a block keeps inside 48 KiB of shared memory where one warp does."""
    return max(1, min(most, 48 * 1024 // max(bytes_a_warp, 1)))
