"""Which variant of SpGEMM a CPU runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class CpuPlan:
    """One choice and its reason.

    Attributes:
        variant: "rowwise" adds k entries an edge; "dense" scatters first and adds whole rows.
        reason: why, in words.
    """

    variant: Literal["rowwise", "dense"]
    reason: str


# Row-wise over dense-path time on 2 cores with AVX-512, D = 256: below 1 up to k = 32, above from
# k = 48 on (graph past the cache). An indexed add costs about 7 times a vectorised one.
LARGEST_SHARE = 1 / 7


def plan_cpu(num_src: int, num_edges: int, width: int, k: int) -> CpuPlan:
    """Chooses the variant for a graph and a feature shape."""
    share = k / width
    if share > LARGEST_SHARE:
        return CpuPlan("dense", f"k/D = {share:.2f} is above {LARGEST_SHARE:.2f}")
    return CpuPlan("rowwise", f"k/D = {share:.2f} is at most {LARGEST_SHARE:.2f}")
