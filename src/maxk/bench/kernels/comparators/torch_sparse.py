"""``torch.sparse.mm`` on a cached CSR matrix: cuSPARSE on a GPU, MKL on a CPU.

The strongest public baseline for full-graph aggregation when, as here, the matrix with its
normalised values and its transpose are made once and kept.
"""

from __future__ import annotations

import torch

from maxk.bench.kernels.comparators import Call, Comparator
from maxk.bench.kernels.gate import csr_tensor
from maxk.bench.kernels.problem import Problem


def prepare(problem: Problem, op: str) -> Call:
    """Returns ``A @ x``, or ``Aᵀ @ grad``, on matrices with the scales folded into the values."""
    a = problem.adjacency
    values = a.entries(problem.graph.weight, problem.x.dtype).detach()
    if op == "forward":
        matrix, dense = csr_tensor(a.indptr, a.indices, values, a.num_src), problem.x
    else:
        values = values[a.t_edges]
        matrix, dense = csr_tensor(a.t_indptr, a.t_indices, values, a.num_dst), problem.grad
    return lambda: torch.sparse.mm(matrix, dense)


def absent(problem: Problem, op: str) -> str | None:
    """16-bit values have no CPU kernel in torch.sparse."""
    del op
    if problem.x.device.type == "cpu" and problem.x.element_size() == 2:
        return "torch.sparse has no 16-bit kernels on CPU"
    return None


COMPARATOR = Comparator("torch.sparse", ("forward", "backward"), prepare, absent)
