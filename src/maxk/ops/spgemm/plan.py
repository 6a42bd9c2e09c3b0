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


# Speed over the dense kernel on 2 cores with AVX-512 (Xeon, 2 MB L2), D = 256, k = 32 / 48 / 64 /
# 96: 1.9 / 1.4 / 1.2 / 0.8 on a graph past the cache (200,000 nodes, 9 M edges), 2.0 / - / 1.0 /
# 0.5 on one inside it (20,000 nodes, 1.8 M edges). On a Zen 5 core k = 64 is 0.8 to 0.94; the dense
# variant also pays for the scatter, about an eighth of its time.
LARGEST_SHARE = 1 / 4


def plan_cpu(width: int, k: int) -> CpuPlan:
    """Chooses the variant for a feature shape."""
    share = k / width
    if share > LARGEST_SHARE:
        return CpuPlan("dense", f"k/D = {share:.2f} is above {LARGEST_SHARE:.2f}")
    return CpuPlan("rowwise", f"k/D = {share:.2f} is at most {LARGEST_SHARE:.2f}")
