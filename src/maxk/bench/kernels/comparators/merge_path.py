"""Merge-path partition, MergePath-SpMM's scheme, on dense rows.

Rows and edges together are cut into equal shares, one warp each, found by a binary search in the
kernel: no share is heavier than another, whatever the degrees. Whole rows are stored, rows that
cross a border are added with atomics.
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
#: Rows and edges of one warp.
SHARE = 128


def spec(width: int) -> Spec:
    """Returns the kernel instance for rows of one width."""
    return Spec(SOURCE, "merge_path", (("WIDTH", width),))


def prepare(problem: Problem, op: str) -> Call:
    """Returns the call: zero the output, then one warp a share."""
    d = direction(problem, op)
    edges = problem.graph.num_edges
    shares = -(-(d.rows + edges) // SHARE)
    launch = kernel(spec(problem.width), "pppppplli", problem.x.device)

    def call() -> Tensor:
        y = torch.zeros(d.rows, problem.width, device=d.dense.device)
        launch(
            -(-shares // WARPS), WARPS, d.indptr, d.indices, d.target_scale, d.source_scale,
            d.dense, y, d.rows, edges, SHARE,
        )  # fmt: skip
        return y

    return call


COMPARATOR = Comparator("merge-path", ("forward", "backward"), prepare, absent)
