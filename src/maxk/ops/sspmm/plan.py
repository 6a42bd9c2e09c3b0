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


# Scatter over dense time on 2 cores, D = 256, a graph past the cache: 0.29 at k = 8, 0.40 at 16,
# 0.73 at 32, 1.1 at 64.
LARGEST_SHARE = 1 / 6
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
