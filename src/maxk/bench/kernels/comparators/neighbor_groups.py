"""Neighbour groups with atomics, GNNAdvisor's scheme, on dense rows.

Each row is cut into groups of a fixed number of edges (the mean degree, as that system's own
benchmark sets it), so that long rows spread over many warps; every group adds its partial row to
the output with atomics, also where a row has one group only. The groups are made once and kept.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from maxk.bench.kernels.comparators import Call, Comparator
from maxk.bench.kernels.comparators.direction import absent, direction
from maxk.bench.kernels.problem import Problem
from maxk.device.kernel import Spec, kernel

SOURCE = Path(__file__).with_suffix(".cu")
WARPS = 8


def spec(width: int) -> Spec:
    """Returns the kernel instance for rows of one width."""
    return Spec(SOURCE, "neighbor_groups", (("WIDTH", width),))


def groups(indptr: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Cuts rows into groups of at most ``size`` edges.

    Returns:
        int32 [G] row of each group and int64 [G] its first edge; rows without edges have none.
    """
    counts = (indptr.diff() + size - 1) // size
    rows = torch.arange(counts.numel(), device=indptr.device)
    owner = torch.repeat_interleave(rows, counts)
    first = counts.cumsum(0) - counts
    place = torch.arange(owner.numel(), device=indptr.device) - first[owner]
    return owner.to(torch.int32), indptr[owner] + place * size


def prepare(problem: Problem, op: str) -> Call:
    """Returns the call: zero the output, then one warp a group."""
    d = direction(problem, op)
    size = max(1, problem.graph.num_edges // max(d.rows, 1))
    owner, start = groups(d.indptr, size)
    count = owner.numel()
    launch = kernel(spec(problem.width), "ppppppppli", problem.x.device)

    def call() -> Tensor:
        y = torch.zeros(d.rows, problem.width, device=d.dense.device)
        launch(
            -(-count // WARPS), WARPS, owner, start, d.indptr, d.indices, d.target_scale,
            d.source_scale, d.dense, y, count, size,
        )  # fmt: skip
        return y

    return call


COMPARATOR = Comparator("neighbor-groups", ("forward", "backward"), prepare, absent)
