"""Which variant of SSpMM a CPU runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True)
class CpuPlan:
    """One choice and its reason.

    Attributes:
        variant: "scatter" or "dense", see :mod:`maxk.ops.sspmm.cpu`.
        reason: why, in words.
    """

    variant: Literal["scatter", "dense"]
    reason: str


# Scatter over dense time on 2 cores (Xeon), D = 256, k = 8 / 16 / 32 / 48 / 64: 0.20 / 0.34 /
# 0.59 / 0.85 / 0.97 on a graph past the cache, 0.28 / - / 0.63 / - / 1.2 on one inside it.
LARGEST_SHARE = 1 / 5
# The private buffers of all threads together may take this much memory.
LARGEST_BUFFERS = 4 * 2**30


def plan_cpu(num_src: int, width: int, k: int, threads: int) -> CpuPlan:
    """Chooses the variant for a graph, a feature shape and a number of threads."""
    if torch.are_deterministic_algorithms_enabled():
        return CpuPlan("dense", "deterministic algorithms: bits must not depend on threads")
    share = k / width
    if share > LARGEST_SHARE:
        return CpuPlan("dense", f"k/D = {share:.2f} is above {LARGEST_SHARE:.2f}")
    buffers = 4 * threads * num_src * k
    if buffers > LARGEST_BUFFERS:
        return CpuPlan("dense", f"scatter would need {buffers / 2**30:.1f} GiB of private buffers")
    return CpuPlan("scatter", f"k/D = {share:.2f} is at most {LARGEST_SHARE:.2f}")
