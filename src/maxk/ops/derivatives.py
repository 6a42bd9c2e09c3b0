r"""Which operation is whose derivative: the raw operations and the formulas, written once.

Aggregation is trilinear. With edge weights w, features v and an upstream gradient g,

.. math:: T(w, v, g) = \sum_{e = (s \to t)} w_e R_t C_s \sum_j v_{s,j}\, g_{t,\,columns_{s,j}}

the three operations are its partial derivatives: ``aggregate`` = dT/dg, ``aggregate_t`` = dT/dv,
``edge_products`` = dT/dw. Each one's gradient is made of the other two, so derivatives of any order
are right. Dense features are the case where every column is stored (``columns=None``).

:mod:`maxk.ops.autograd` makes eager autograd functions of the formulas, :mod:`maxk.ops.library`
registered operations for ``torch.compile`` and ``torch.export``.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from maxk.graph.adjacency import Adjacency
from maxk.ops import contract, dispatch

# The raw operations take checked, contiguous operands and know no gradient.


def run_select(x: Tensor, k: int, implementation: str | None) -> tuple[Tensor, Tensor]:
    """MaxK: values [N, k] and columns [N, k]."""
    values, columns = dispatch.call("maxk", "select", x.device, implementation, x, k)
    return values, columns


def run_norm_select(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, k: int, implementation: str | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """LayerNorm and MaxK: values and columns [N, k]; mean and 1 / deviation of the rows, [N]."""
    values, columns, mean, rstd = dispatch.call(
        "norm_maxk", "select", x.device, implementation, x, weight, bias, eps, k
    )
    return values, columns, mean, rstd


def run_norm_select_grad(
    grad: Tensor, columns: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor,
    implementation: str | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of LayerNorm and MaxK: of x [N, D], weight [D] and bias [D]."""
    contract.check_norm_select_grad(grad, columns, x, mean, rstd, weight)
    dx, dweight, dbias = dispatch.call(
        "norm_maxk", "grad", x.device, implementation, grad, columns, x, mean, rstd, weight
    )
    return dx, dweight, dbias


def run_add(
    y: Tensor, values: Tensor, columns: Tensor, width: int, scale: Tensor,
    implementation: str | None,
) -> None:  # fmt: skip
    """Adds ``scale`` [1] times CBSR entries to a dense matrix in place."""
    contract.check_add(y, values, columns, width, scale)
    dispatch.call("maxk", "add", y.device, implementation, y, values, columns, scale)


def run_scatter(values: Tensor, columns: Tensor, width: int, implementation: str | None) -> Tensor:
    """Dense [N, D] of CBSR entries."""
    contract.check_scatter(values, columns, width)
    dense: Tensor = dispatch.call(
        "maxk", "scatter", values.device, implementation, values, columns, width
    )
    return dense


def run_pick(dense: Tensor, columns: Tensor, implementation: str | None) -> Tensor:
    """Entries of a dense matrix at CBSR columns, [N, k]."""
    contract.check_pick(dense, columns)
    picked: Tensor = dispatch.call("sspmm", "pick", dense.device, implementation, dense, columns)
    return picked


def run_aggregate(
    adjacency: Adjacency, weight: Tensor | None, values: Tensor, columns: Tensor | None, width: int,
    implementation: str | None,
) -> Tensor:  # fmt: skip
    """dT/dg: SpGEMM of CBSR features, SpMM of dense ones; [M, D]."""
    contract.check_aggregate(adjacency, weight, values, columns, width)
    device = values.device
    y: Tensor
    if columns is None:
        y = dispatch.call("spmm", "spmm", device, implementation, adjacency, weight, values)
    else:
        y = dispatch.call(
            "spgemm", "spgemm", device, implementation, adjacency, weight, values, columns, width
        )
    return y


def run_aggregate_t(
    adjacency: Adjacency, weight: Tensor | None, grad: Tensor, columns: Tensor | None,
    implementation: str | None,
) -> Tensor:  # fmt: skip
    """dT/dv: SSpMM at CBSR columns [N, k], transposed SpMM for dense features [N, D]."""
    contract.check_aggregate_t(adjacency, weight, grad, columns)
    device = grad.device
    du: Tensor
    if columns is None:
        du = dispatch.call("spmm", "spmm_t", device, implementation, adjacency, weight, grad)
    else:
        du = dispatch.call(
            "sspmm", "sspmm", device, implementation, adjacency, weight, grad, columns
        )
    return du


def run_edge_products(
    adjacency: Adjacency, values: Tensor, columns: Tensor | None, grad: Tensor,
    implementation: str | None,
) -> Tensor:  # fmt: skip
    """dT/dw: one dot product an edge, [E] in CSR order and accumulation dtype."""
    contract.check_edge_products(adjacency, values, columns, grad)
    device = grad.device
    dw: Tensor
    if columns is None:
        dw = dispatch.call("spmm", "sddmm_dense", device, implementation, adjacency, values, grad)
    else:
        dw = dispatch.call(
            "sspmm", "sddmm", device, implementation, adjacency, values, columns, grad
        )
    return dw


# The formulas are differentiable as far as the calls they are given are.


class Calls(Protocol):
    """A differentiable way to call the operations: eager functions or registered ones."""

    def scatter(self, values: Tensor, columns: Tensor, width: int) -> Tensor:
        """CBSR entries to dense."""

    def pick(self, dense: Tensor, columns: Tensor) -> Tensor:
        """Dense to CBSR entries, the adjoint of ``scatter``."""

    def aggregate(
        self, adjacency: Adjacency, weight: Tensor | None, values: Tensor,
        columns: Tensor | None, width: int,
    ) -> Tensor:  # fmt: skip
        """dT/dg."""

    def aggregate_t(
        self, adjacency: Adjacency, weight: Tensor | None, grad: Tensor, columns: Tensor | None
    ) -> Tensor:
        """dT/dv."""

    def edge_products(
        self, adjacency: Adjacency, values: Tensor, columns: Tensor | None, grad: Tensor
    ) -> Tensor:
        """dT/dw."""


Grads = tuple[Tensor | None, Tensor | None]


def grad_aggregate(
    calls: Calls, needs: tuple[bool, bool], adjacency: Adjacency, weight: Tensor | None,
    values: Tensor, columns: Tensor | None, grad: Tensor,
) -> Grads:  # fmt: skip
    """Gradients of ``aggregate`` for (weight, values)."""
    dw = dv = None
    if needs[0] and weight is not None:
        dw = calls.edge_products(adjacency, values, columns, grad).to(weight.dtype)
    if needs[1]:
        dv = calls.aggregate_t(adjacency, weight, grad, columns)
    return dw, dv


def grad_aggregate_t(
    calls: Calls, needs: tuple[bool, bool], adjacency: Adjacency, weight: Tensor | None,
    grad: Tensor, columns: Tensor | None, upstream: Tensor,
) -> Grads:  # fmt: skip
    """Gradients of ``aggregate_t`` for (weight, grad)."""
    dw = dg = None
    if needs[0] and weight is not None:
        dw = calls.edge_products(adjacency, upstream, columns, grad).to(weight.dtype)
    if needs[1]:
        dg = calls.aggregate(adjacency, weight, upstream, columns, grad.shape[1])
    return dw, dg


def grad_edge_products(
    calls: Calls, needs: tuple[bool, bool], adjacency: Adjacency, values: Tensor,
    columns: Tensor | None, grad: Tensor, upstream: Tensor,
) -> Grads:  # fmt: skip
    """Gradients of ``edge_products`` for (values, grad)."""
    dv = dg = None
    if needs[0]:
        dv = calls.aggregate_t(adjacency, upstream, grad, columns)
    if needs[1]:
        dg = calls.aggregate(adjacency, upstream, values, columns, grad.shape[1])
    return dv, dg
