r"""Which operation is whose derivative, and the registration with ``torch.library``.

Aggregation is trilinear. With edge weights w, features v and an upstream gradient g,

.. math:: T(w, v, g) = \sum_{e = (s \to t)} w_e R_t C_s \sum_j v_{s,j}\, g_{t,\,columns_{s,j}}

the three operations are its partial derivatives: ``aggregate`` = dT/dg, ``aggregate_t`` = dT/dv,
``edge_products`` = dT/dw. Each one's gradient is made of the other two, so derivatives of any order
are right. Dense features are the case where every column is stored (``columns=None``).

Eager calls take the autograd functions; the registered operations cost some microseconds more a
call and serve ``torch.compile`` and ``torch.export``. Both take their formulas from here.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from maxk.cbsr import column_dtype
from maxk.graph.adjacency import Adjacency
from maxk.ops import dispatch
from maxk.ops.spmm.reference import accumulation_dtype

# ---------------------------------------------------------------------------------------------
# The raw operations: no gradient, operands checked and contiguous.


def run_select(x: Tensor, k: int, implementation: str | None) -> tuple[Tensor, Tensor]:
    """MaxK: values [N, k] and columns [N, k]."""
    values, columns = dispatch.call("maxk", "select", x.device, implementation, x, k)
    return values, columns


def run_scatter(values: Tensor, columns: Tensor, width: int, implementation: str | None) -> Tensor:
    """Dense [N, D] of CBSR entries."""
    dense: Tensor = dispatch.call(
        "maxk", "scatter", values.device, implementation, values, columns, width
    )
    return dense


def run_pick(dense: Tensor, columns: Tensor, implementation: str | None) -> Tensor:
    """Entries of a dense matrix at CBSR columns, [N, k]."""
    picked: Tensor = dispatch.call("sspmm", "pick", dense.device, implementation, dense, columns)
    return picked


def run_aggregate(
    adjacency: Adjacency, weight: Tensor | None, values: Tensor, columns: Tensor | None, width: int,
    implementation: str | None,
) -> Tensor:  # fmt: skip
    """dT/dg: SpGEMM of CBSR features, SpMM of dense ones; [M, D]."""
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
    device = grad.device
    dw: Tensor
    if columns is None:
        dw = dispatch.call("spmm", "sddmm_dense", device, implementation, adjacency, values, grad)
    else:
        dw = dispatch.call(
            "sspmm", "sddmm", device, implementation, adjacency, values, columns, grad
        )
    return dw


# ---------------------------------------------------------------------------------------------
# The formulas, written once for both ways of calling.


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


# ---------------------------------------------------------------------------------------------
# Eager: autograd functions.


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


# ---------------------------------------------------------------------------------------------
# Registered: torch.library.

LIBRARY = torch.library.Library("maxk", "DEF")

_GRAPH = "Tensor[] graph, Tensor? row_scale, Tensor? column_scale"


def _define(
    name: str,
    arguments: str,
    result: str,
    implementation: Any,
    fake: Any,
    backward: Any,
    setup: Any,
) -> None:
    LIBRARY.define(f"{name}({arguments}) -> {result}")
    for key in ("CPU", "CUDA"):
        LIBRARY.impl(name, implementation, key)
    torch.library.register_fake(f"maxk::{name}", fake, lib=LIBRARY)
    torch.library.register_autograd(f"maxk::{name}", backward, setup_context=setup, lib=LIBRARY)


class Registered:
    """The operations as registered with torch.library."""

    def select(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """MaxK."""
        values, columns = torch.ops.maxk.select(x, k)
        return values, columns

    def scatter(self, values: Tensor, columns: Tensor, width: int) -> Tensor:
        """CBSR entries to dense."""
        dense: Tensor = torch.ops.maxk.scatter(values, columns, width)
        return dense

    def pick(self, dense: Tensor, columns: Tensor) -> Tensor:
        """Dense to CBSR entries."""
        picked: Tensor = torch.ops.maxk.pick(dense, columns)
        return picked

    def aggregate(
        self, adjacency: Adjacency, weight: Tensor | None, values: Tensor,
        columns: Tensor | None, width: int,
    ) -> Tensor:  # fmt: skip
        """dT/dg."""
        y: Tensor = torch.ops.maxk.aggregate(
            adjacency.tensors(), adjacency.row_scale, adjacency.column_scale, weight, values,
            columns, width,
        )  # fmt: skip
        return y

    def aggregate_t(
        self, adjacency: Adjacency, weight: Tensor | None, grad: Tensor, columns: Tensor | None
    ) -> Tensor:
        """dT/dv."""
        du: Tensor = torch.ops.maxk.aggregate_t(
            adjacency.tensors(), adjacency.row_scale, adjacency.column_scale, weight, grad, columns
        )
        return du

    def edge_products(
        self, adjacency: Adjacency, values: Tensor, columns: Tensor | None, grad: Tensor
    ) -> Tensor:
        """dT/dw."""
        dw: Tensor = torch.ops.maxk.edge_products(
            adjacency.tensors(), adjacency.row_scale, adjacency.column_scale, values, columns, grad
        )
        return dw


_registered = Registered()


def _register_select() -> None:
    def implementation(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return run_select(x.contiguous(), k, None)

    def fake(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return x.new_empty(x.shape[0], k), x.new_empty(
            (x.shape[0], k), dtype=column_dtype(x.shape[1])
        )

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output[1])
        ctx.width = inputs[0].shape[1]

    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None]:
        return _registered.scatter(grad, ctx.saved_tensors[0], ctx.width), None

    _define("select", "Tensor x, int k", "(Tensor, Tensor)", implementation, fake, backward, setup)


def _register_scatter() -> None:
    def implementation(values: Tensor, columns: Tensor, width: int) -> Tensor:
        return run_scatter(values.contiguous(), columns.contiguous(), width, None)

    def fake(values: Tensor, columns: Tensor, width: int) -> Tensor:
        return values.new_empty(values.shape[0], width)

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[1])

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _registered.pick(grad, ctx.saved_tensors[0]), None, None

    _define(
        "scatter", "Tensor values, Tensor columns, int width", "Tensor", implementation, fake,
        backward, setup,
    )  # fmt: skip


def _register_pick() -> None:
    def implementation(dense: Tensor, columns: Tensor) -> Tensor:
        return run_pick(dense.contiguous(), columns.contiguous(), None)

    def fake(dense: Tensor, columns: Tensor) -> Tensor:
        return dense.new_empty(columns.shape)

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.width = inputs[0].shape[1]

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _registered.scatter(grad, ctx.saved_tensors[0], ctx.width), None

    _define("pick", "Tensor dense, Tensor columns", "Tensor", implementation, fake, backward, setup)


def _save_graph(ctx: Any, inputs: Any, operands: tuple[Tensor | None, ...]) -> None:
    graph, row_scale, column_scale = inputs[:3]
    ctx.save_for_backward(*graph, row_scale, column_scale, *operands)
    ctx.graph_length = len(graph)


def _load_graph(ctx: Any) -> tuple[Adjacency, tuple[Any, ...]]:
    saved = ctx.saved_tensors
    n = ctx.graph_length
    return Adjacency.from_tensors(list(saved[:n]), saved[n], saved[n + 1]), saved[n + 2 :]


def _register_aggregate() -> None:
    def implementation(
        graph: list[Tensor], row_scale: Tensor | None, column_scale: Tensor | None,
        weight: Tensor | None, values: Tensor, columns: Tensor | None, width: int,
    ) -> Tensor:  # fmt: skip
        adjacency = Adjacency.from_tensors(graph, row_scale, column_scale)
        return run_aggregate(adjacency, weight, values.contiguous(), columns, width, None)

    def fake(
        graph: list[Tensor], row_scale: Any, column_scale: Any, weight: Any, values: Tensor,
        columns: Any, width: int,
    ) -> Tensor:  # fmt: skip
        return values.new_empty(graph[0].shape[0] - 1, width)

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        _save_graph(ctx, inputs, tuple(inputs[3:6]))

    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        adjacency, (weight, values, columns) = _load_graph(ctx)
        needs = (ctx.needs_input_grad[3], ctx.needs_input_grad[4])
        dw, dv = grad_aggregate(_registered, needs, adjacency, weight, values, columns, grad)
        return [None] * ctx.graph_length, None, None, dw, dv, None, None

    _define(
        "aggregate", f"{_GRAPH}, Tensor? weight, Tensor values, Tensor? columns, int width",
        "Tensor", implementation, fake, backward, setup,
    )  # fmt: skip


def _register_aggregate_t() -> None:
    def implementation(
        graph: list[Tensor], row_scale: Tensor | None, column_scale: Tensor | None,
        weight: Tensor | None, grad: Tensor, columns: Tensor | None,
    ) -> Tensor:  # fmt: skip
        adjacency = Adjacency.from_tensors(graph, row_scale, column_scale)
        return run_aggregate_t(adjacency, weight, grad.contiguous(), columns, None)

    def fake(
        graph: list[Tensor], row_scale: Any, column_scale: Any, weight: Any, grad: Tensor,
        columns: Tensor | None,
    ) -> Tensor:  # fmt: skip
        if columns is None:
            return grad.new_empty(graph[2].shape[0] - 1, grad.shape[1])
        return grad.new_empty(columns.shape)

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        _save_graph(ctx, inputs, tuple(inputs[3:6]))

    def backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
        adjacency, (weight, grad, columns) = _load_graph(ctx)
        needs = (ctx.needs_input_grad[3], ctx.needs_input_grad[4])
        dw, dg = grad_aggregate_t(_registered, needs, adjacency, weight, grad, columns, upstream)
        return [None] * ctx.graph_length, None, None, dw, dg, None

    _define(
        "aggregate_t", f"{_GRAPH}, Tensor? weight, Tensor grad, Tensor? columns", "Tensor",
        implementation, fake, backward, setup,
    )  # fmt: skip


def _register_edge_products() -> None:
    def implementation(
        graph: list[Tensor], row_scale: Tensor | None, column_scale: Tensor | None,
        values: Tensor, columns: Tensor | None, grad: Tensor,
    ) -> Tensor:  # fmt: skip
        adjacency = Adjacency.from_tensors(graph, row_scale, column_scale)
        return run_edge_products(adjacency, values.contiguous(), columns, grad.contiguous(), None)

    def fake(
        graph: list[Tensor], row_scale: Any, column_scale: Any, values: Tensor, columns: Any,
        grad: Tensor,
    ) -> Tensor:  # fmt: skip
        return grad.new_empty(graph[1].shape[0], dtype=accumulation_dtype(grad.dtype))

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        _save_graph(ctx, inputs, tuple(inputs[3:6]))

    def backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
        adjacency, (values, columns, grad) = _load_graph(ctx)
        needs = (ctx.needs_input_grad[3], ctx.needs_input_grad[5])
        dv, dg = grad_edge_products(_registered, needs, adjacency, values, columns, grad, upstream)
        return [None] * ctx.graph_length, None, None, dv, None, dg

    _define(
        "edge_products", f"{_GRAPH}, Tensor values, Tensor? columns, Tensor grad", "Tensor",
        implementation, fake, backward, setup,
    )  # fmt: skip


_register_select()
_register_scatter()
_register_pick()
_register_aggregate()
_register_aggregate_t()
_register_edge_products()


def calls(implementation: str | None = None) -> Eager | Registered:
    """The way to call the operations here: registered under a compiler, eager otherwise."""
    if torch.compiler.is_compiling():
        return _registered
    # Kept for the backward pass, which may run on another thread and outside the block.
    return Eager(dispatch.requested(implementation))
