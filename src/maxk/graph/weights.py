"""What sum, mean and symmetric normalisation mean as row and column scales.

None of them is an edge weight: a kernel multiplies a whole row once, and unweighted graphs carry no
array of ones.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from maxk.graph.csr import CSR

Reduce = Literal["sum", "mean", "gcn"]
REDUCTIONS: tuple[Reduce, ...] = ("sum", "mean", "gcn")


def check_reduce(reduce: str) -> Reduce:
    """Returns ``reduce`` if it is one of the three reductions."""
    for known in REDUCTIONS:
        if reduce == known:
            return known
    raise ValueError(f"reduce must be one of 'sum', 'mean', 'gcn', got {reduce!r}")


def mean_scale(csr: CSR, dtype: torch.dtype) -> Tensor:
    """1 / in-degree, [M]; rows without edges get 1 and stay 0 in every sum.

    Parallel edges each count, and edge weights do not change the count.
    """
    return csr.indptr.diff().clamp(min=1).to(dtype).reciprocal()


def gcn_scale(csr: CSR, weight: Tensor | None, dtype: torch.dtype, *, look: bool = False) -> Tensor:
    """in-degree^(-1/2), [N]; a degree of 0 gives 0, and 0 as its gradient in the weights.

    Args:
        csr: a square graph whose self-loops are already filled.
        weight: [E] in CSR order or None for ones; degrees are sums of weights.
        dtype: result dtype.
        look: whether to look for negative degrees, of which there is no square root.

    Raises:
        ValueError: a degree is negative.
    """
    if weight is None:
        degree = csr.indptr.diff().to(dtype)
    else:
        degree = _sums(csr, weight.to(dtype))
        if look and bool((degree < 0).any()):
            node = int((degree < 0).nonzero()[0])
            raise ValueError(
                f"edge_weight gives node {node} the degree {float(degree[node]):g} (the sum of the "
                "weights of its in-edges and its self-loop), and reduce='gcn' divides by the "
                "square root of degrees; use weights whose sums are not negative, or "
                "reduce='sum' or 'mean'"
            )
    # The inner choice keeps the infinite slope at 0 out of the gradient.
    scale = torch.where(degree == 0, torch.ones_like(degree), degree).rsqrt()
    return torch.where(degree == 0, torch.zeros_like(scale), scale)


def _sums(csr: CSR, weight: Tensor) -> Tensor:
    """Sum of the weights of each row, [M]."""
    if not weight.is_cuda or weight.requires_grad or torch.compiler.is_compiling():
        total = torch.zeros(csr.num_dst, dtype=weight.dtype, device=csr.device)
        return total.index_add(0, csr.rows().long(), weight)
    # index_add adds in whatever order threads come; constant weights have repeatable scales.
    return torch.segment_reduce(weight, "sum", offsets=csr.indptr, initial=0, unsafe=True)


def gcn_weight(csr: CSR, weight: Tensor, dtype: torch.dtype, *, look: bool = False) -> Tensor:
    """Edge weights with both scales multiplied in, [E] in CSR order, differentiable.

    Where weights want a gradient the scales depend on them, so they cannot stand apart.
    """
    scale = gcn_scale(csr, weight, dtype, look=look)
    return weight.to(dtype) * scale[csr.rows().long()] * scale[csr.indices.long()]


def missing_loops(csr: CSR) -> Tensor:
    """int64 ids of the nodes without a self-loop."""
    rows = csr.rows()
    has_loop = torch.zeros(csr.num_dst, dtype=torch.bool, device=csr.device)
    has_loop[rows[rows == csr.indices].long()] = True
    return (~has_loop).nonzero().squeeze(1)
