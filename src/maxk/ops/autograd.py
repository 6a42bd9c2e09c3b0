"""The operations as autograd functions, for eager mode.

A registered operation costs some microseconds more a call than an autograd function, so eager code
never pays for the registration; under a compiler :func:`calls` hands out the registered ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maxk.graph.adjacency import Adjacency
from maxk.ops import contract, dispatch
from maxk.ops.derivatives import (
    grad_aggregate,
    grad_aggregate_t,
    grad_edge_products,
    run_add,
    run_aggregate,
    run_aggregate_t,
    run_edge_products,
    run_norm_select,
    run_norm_select_grad,
    run_pick,
    run_scatter,
    run_select,
)
from maxk.ops.library import REGISTERED, Registered
from maxk.ops.norm_maxk import reference


class _Select(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, k: int, implementation: str | None) -> tuple[Tensor, Tensor]:
        values, columns = run_select(x, k, implementation)
        ctx.save_for_backward(columns)
        ctx.mark_non_differentiable(columns)
        ctx.width, ctx.implementation = x.shape[1], implementation
        return values, columns

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None, None]:
        (columns,) = ctx.saved_tensors
        return Eager(ctx.implementation).scatter(grad, columns, ctx.width), None, None


class _NormSelect(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, k: int,
        implementation: str | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        values, columns, mean, rstd = run_norm_select(x, weight, bias, eps, k, implementation)
        ctx.save_for_backward(x, weight, columns, mean, rstd)
        ctx.mark_non_differentiable(columns)
        ctx.eps, ctx.implementation = eps, implementation
        return values, columns

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        x, weight, columns, mean, rstd = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody differentiates the gradient
            mean = x.mean(1)
            rstd = (x.var(1, correction=0) + ctx.eps).rsqrt()
            dx, dweight, dbias = reference.grad(grad, columns, x, mean, rstd, weight)
        else:
            dx, dweight, dbias = run_norm_select_grad(
                grad.contiguous(), columns, x, mean, rstd, weight, ctx.implementation
            )
        return dx, dweight, dbias, None, None, None


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, y: Tensor, values: Tensor, columns: Tensor, width: int, scale: Tensor,
        implementation: str | None,
    ) -> Tensor:  # fmt: skip
        ctx.mark_dirty(y)
        ctx.save_for_backward(values, columns, scale)
        ctx.implementation = implementation
        run_add(y, values.contiguous(), columns.contiguous(), width, scale, implementation)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, columns, scale = ctx.saved_tensors
        picked = Eager(ctx.implementation).pick(grad, columns)
        dvalues = dscale = None
        if ctx.needs_input_grad[1]:
            dvalues = (picked * scale).to(values.dtype)
        if ctx.needs_input_grad[4]:
            dscale = (picked * values).sum(dtype=scale.dtype).reshape(scale.shape)
        return grad, dvalues, None, None, dscale, None


class _AddLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, y: Tensor, values: Tensor, columns: Tensor, width: int, weight: Tensor,
        implementation: str | None,
    ) -> Tensor:  # fmt: skip
        contract.check_add_linear(y, values, columns, width, weight)
        ctx.mark_dirty(y)
        ctx.save_for_backward(values, columns, weight)
        ctx.implementation = implementation
        dense = run_scatter(
            values.to(y.dtype).contiguous(), columns.contiguous(), width, implementation
        )
        return y.addmm_(dense, weight.to(y.dtype).t())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, columns, weight = ctx.saved_tensors
        eager = Eager(ctx.implementation)
        dvalues = dweight = None
        if ctx.needs_input_grad[1]:
            product = grad @ weight.to(grad.dtype)
            dvalues = eager.pick(product, columns).to(values.dtype)
        if ctx.needs_input_grad[4]:
            # The dense rows are made again from the k entries: keeping them costs N x D values.
            dense = eager.scatter(values.to(grad.dtype), columns, weight.shape[1])
            dweight = (grad.t() @ dense).to(weight.dtype)
        return grad, dvalues, None, None, dweight, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, columns: Tensor, width: int, implementation: str | None
    ) -> Tensor:
        ctx.save_for_backward(columns)
        ctx.implementation = implementation
        return run_scatter(values.contiguous(), columns.contiguous(), width, implementation)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (columns,) = ctx.saved_tensors
        return Eager(ctx.implementation).pick(grad, columns), None, None, None


class _Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: Tensor, columns: Tensor, implementation: str | None) -> Tensor:
        ctx.save_for_backward(columns)
        ctx.width, ctx.implementation = dense.shape[1], implementation
        return run_pick(dense.contiguous(), columns.contiguous(), implementation)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (columns,) = ctx.saved_tensors
        return Eager(ctx.implementation).scatter(grad, columns, ctx.width), None, None


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, adjacency: Adjacency, weight: Tensor | None, values: Tensor,
        columns: Tensor | None, width: int, implementation: str | None,
    ) -> Tensor:  # fmt: skip
        # Only a gradient of the weights needs the values again.
        kept = values if ctx.needs_input_grad[1] else None
        ctx.save_for_backward(weight, kept, columns)
        ctx.adjacency, ctx.implementation = adjacency, implementation
        return run_aggregate(adjacency, weight, values.contiguous(), columns, width, implementation)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, values, columns = ctx.saved_tensors
        dw, dv = grad_aggregate(
            Eager(ctx.implementation), ctx.needs_input_grad[1:3], ctx.adjacency, weight, values,
            columns, grad,
        )  # fmt: skip
        return None, dw, dv, None, None, None


class _AggregateT(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, adjacency: Adjacency, weight: Tensor | None, grad: Tensor,
        columns: Tensor | None, implementation: str | None,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(weight, grad, columns)
        ctx.adjacency, ctx.implementation = adjacency, implementation
        return run_aggregate_t(adjacency, weight, grad.contiguous(), columns, implementation)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        weight, grad, columns = ctx.saved_tensors
        dw, dg = grad_aggregate_t(
            Eager(ctx.implementation), ctx.needs_input_grad[1:3], ctx.adjacency, weight, grad,
            columns, upstream,
        )  # fmt: skip
        return None, dw, dg, None, None


class _EdgeProducts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, adjacency: Adjacency, values: Tensor, columns: Tensor | None, grad: Tensor,
        implementation: str | None,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(values, columns, grad)
        ctx.adjacency, ctx.implementation = adjacency, implementation
        return run_edge_products(
            adjacency, values.contiguous(), columns, grad.contiguous(), implementation
        )

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        values, columns, grad = ctx.saved_tensors
        needs = (ctx.needs_input_grad[1], ctx.needs_input_grad[3])
        dv, dg = grad_edge_products(
            Eager(ctx.implementation), needs, ctx.adjacency, values, columns, grad, upstream
        )
        return None, dv, None, dg, None


class Eager:
    """The operations as autograd functions, with one choice of implementation."""

    def __init__(self, implementation: str | None = None) -> None:
        self.implementation = implementation

    def select(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """MaxK."""
        values, columns = _Select.apply(x, k, self.implementation)
        return values, columns

    def norm_select(
        self, x: Tensor, weight: Tensor, bias: Tensor, eps: float, k: int
    ) -> tuple[Tensor, Tensor]:
        """LayerNorm and MaxK."""
        values, columns = _NormSelect.apply(x, weight, bias, eps, k, self.implementation)
        return values, columns

    def add(self, y: Tensor, values: Tensor, columns: Tensor, width: int, scale: Tensor) -> Tensor:
        """Adds ``scale`` [1] times CBSR entries to y in place, and returns y."""
        total: Tensor = _Add.apply(y, values, columns, width, scale, self.implementation)
        return total

    def add_linear(
        self, y: Tensor, values: Tensor, columns: Tensor, width: int, weight: Tensor
    ) -> Tensor:
        """Adds CBSR features times weight^T to y in place, and returns y."""
        total: Tensor = _AddLinear.apply(y, values, columns, width, weight, self.implementation)
        return total

    def scatter(self, values: Tensor, columns: Tensor, width: int) -> Tensor:
        """CBSR entries to dense."""
        dense: Tensor = _Scatter.apply(values, columns, width, self.implementation)
        return dense

    def pick(self, dense: Tensor, columns: Tensor) -> Tensor:
        """Dense to CBSR entries."""
        picked: Tensor = _Pick.apply(dense, columns, self.implementation)
        return picked

    def aggregate(
        self, adjacency: Adjacency, weight: Tensor | None, values: Tensor,
        columns: Tensor | None, width: int,
    ) -> Tensor:  # fmt: skip
        """dT/dg."""
        y: Tensor = _Aggregate.apply(adjacency, weight, values, columns, width, self.implementation)
        return y

    def aggregate_t(
        self, adjacency: Adjacency, weight: Tensor | None, grad: Tensor, columns: Tensor | None
    ) -> Tensor:
        """dT/dv."""
        du: Tensor = _AggregateT.apply(adjacency, weight, grad, columns, self.implementation)
        return du

    def edge_products(
        self, adjacency: Adjacency, values: Tensor, columns: Tensor | None, grad: Tensor
    ) -> Tensor:
        """dT/dw."""
        dw: Tensor = _EdgeProducts.apply(adjacency, values, columns, grad, self.implementation)
        return dw


def calls(implementation: str | None = None) -> Eager | Registered:
    """The way to call the operations here: registered under a compiler, eager otherwise."""
    if torch.compiler.is_compiling():
        return REGISTERED
    # Kept for the backward pass, which may run on another thread and outside the block.
    return Eager(dispatch.requested(implementation))
