"""Sparse times sparse on ReLU's zeros: cuSPARSE or MKL SpGEMM of the graph and ``relu(x)`` as CSR.

About half of the entries are zero, at irregular places. The product is nearly dense, so that the
general algorithm pays for a structure that nobody needs: unstructured sparsity does not pay.
"""

from __future__ import annotations

import torch

from maxk.bench.kernels.comparators import Call, Comparator
from maxk.bench.kernels.gate import csr_tensor
from maxk.bench.kernels.problem import Problem

#: The libraries count intermediate products with 32 bits, and keep them all.
MOST_PRODUCTS = 2**30


def prepare(problem: Problem, op: str) -> Call:
    """Returns the product of two CSR matrices; the features are compressed beforehand."""
    del op
    a = problem.adjacency
    values = a.entries(problem.graph.weight, problem.x.dtype).detach()
    matrix = csr_tensor(a.indptr, a.indices, values, a.num_src)
    relu = problem.x.relu().to_sparse_csr()
    features = csr_tensor(relu.crow_indices(), relu.col_indices(), relu.values(), problem.width)
    return lambda: torch.sparse.mm(matrix, features)


def absent(problem: Problem, op: str) -> str | None:
    """Too many intermediate products, or 16-bit values on a CPU."""
    del op
    products = problem.graph.num_edges * problem.width // 2
    if products > MOST_PRODUCTS:
        return f"{products:.1e} intermediate products do not fit the library's workspace"
    if problem.x.device.type == "cpu" and problem.x.element_size() == 2:
        return "torch.sparse has no 16-bit kernels on CPU"
    return None


COMPARATOR = Comparator(
    "relu-spgemm", ("forward",), prepare, absent, operand="relu", depends_on_k=False
)
