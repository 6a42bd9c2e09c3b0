"""The operations as registered with torch.library: schema, fake, autograd.

Graphs cross the boundary as lists of plain tensors. ``torch.compile(fullgraph=True)``,
``torch.export`` and ``torch.library.opcheck`` see these operations only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maxk.cbsr import column_dtype
from maxk.graph.adjacency import Adjacency
from maxk.ops import contract
from maxk.ops.derivatives import (
    grad_aggregate,
    grad_aggregate_t,
    grad_edge_products,
    run_aggregate,
    run_aggregate_t,
    run_edge_products,
    run_norm_select,
    run_norm_select_grad,
    run_pick,
    run_scatter,
    run_select,
)
from maxk.ops.spmm.reference import accumulation_dtype

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

    def norm_select(
        self, x: Tensor, weight: Tensor, bias: Tensor, eps: float, k: int
    ) -> tuple[Tensor, Tensor]:
        """LayerNorm and MaxK."""
        values, columns, _, _ = torch.ops.maxk.norm_select(x, weight, bias, eps, k)
        return values, columns

    def add(self, y: Tensor, values: Tensor, columns: Tensor, width: int, scale: Tensor) -> Tensor:
        """Returns y + scale times CBSR entries; the compiler decides what happens in place."""
        contract.check_add(y, values, columns, width, scale)
        return y + scale * self.scatter(values, columns, width)

    def add_linear(
        self, y: Tensor, values: Tensor, columns: Tensor, width: int, weight: Tensor
    ) -> Tensor:
        """Returns y + CBSR features times weight^T."""
        contract.check_add_linear(y, values, columns, width, weight)
        dense = self.scatter(values, columns, width).to(y.dtype)
        return torch.addmm(y, dense, weight.to(y.dtype).t())

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


REGISTERED = Registered()


def _register_select() -> None:
    def implementation(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        contract.check_select(x, k)
        return run_select(x.contiguous(), k, None)

    def fake(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        contract.check_select(x, k)
        return x.new_empty(x.shape[0], k), x.new_empty(
            (x.shape[0], k), dtype=column_dtype(x.shape[1])
        )

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output[1])
        ctx.width = inputs[0].shape[1]

    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None]:
        return REGISTERED.scatter(grad, ctx.saved_tensors[0], ctx.width), None

    _define("select", "Tensor x, int k", "(Tensor, Tensor)", implementation, fake, backward, setup)


def _register_norm_select() -> None:
    def implementation(
        x: Tensor, weight: Tensor, bias: Tensor, eps: float, k: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        contract.check_norm_select(x, weight, bias, k)
        return run_norm_select(x.contiguous(), weight, bias, eps, k, None)

    def fake(
        x: Tensor, weight: Tensor, bias: Tensor, eps: float, k: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        contract.check_norm_select(x, weight, bias, k)
        rows, dtype = x.shape[0], accumulation_dtype(x.dtype)
        return (
            x.new_empty(rows, k),
            x.new_empty((rows, k), dtype=column_dtype(x.shape[1])),
            x.new_empty(rows, dtype=dtype),
            x.new_empty(rows, dtype=dtype),
        )

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2], *output[1:])
        ctx.mark_non_differentiable(*output[1:])

    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, weight, columns, mean, rstd = ctx.saved_tensors
        grads = torch.ops.maxk.norm_select_grad(grad, columns, x, mean, rstd, weight)
        return *grads, None, None

    _define(
        "norm_select", "Tensor x, Tensor weight, Tensor bias, float eps, int k",
        "(Tensor, Tensor, Tensor, Tensor)", implementation, fake, backward, setup,
    )  # fmt: skip


def _register_norm_select_grad() -> None:
    def implementation(
        grad: Tensor, columns: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return run_norm_select_grad(
            grad.contiguous(), columns, x.contiguous(), mean, rstd, weight, None
        )

    def fake(
        grad: Tensor, columns: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        contract.check_norm_select_grad(grad, columns, x, mean, rstd, weight)
        return x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty(weight.shape)

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(
            "the gradient of LayerNorm and MaxK is not differentiated under a compiler; "
            "take second derivatives in eager mode"
        )

    _define(
        "norm_select_grad",
        "Tensor grad, Tensor columns, Tensor x, Tensor mean, Tensor rstd, Tensor weight",
        "(Tensor, Tensor, Tensor)", implementation, fake, backward, setup,
    )  # fmt: skip


def _register_scatter() -> None:
    def implementation(values: Tensor, columns: Tensor, width: int) -> Tensor:
        return run_scatter(values.contiguous(), columns.contiguous(), width, None)

    def fake(values: Tensor, columns: Tensor, width: int) -> Tensor:
        contract.check_scatter(values, columns, width)
        return values.new_empty(values.shape[0], width)

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[1])

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return REGISTERED.pick(grad, ctx.saved_tensors[0]), None, None

    _define(
        "scatter", "Tensor values, Tensor columns, int width", "Tensor", implementation, fake,
        backward, setup,
    )  # fmt: skip


def _register_pick() -> None:
    def implementation(dense: Tensor, columns: Tensor) -> Tensor:
        return run_pick(dense.contiguous(), columns.contiguous(), None)

    def fake(dense: Tensor, columns: Tensor) -> Tensor:
        contract.check_pick(dense, columns)
        return dense.new_empty(columns.shape)

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.width = inputs[0].shape[1]

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return REGISTERED.scatter(grad, ctx.saved_tensors[0], ctx.width), None

    _define("pick", "Tensor dense, Tensor columns", "Tensor", implementation, fake, backward, setup)


def _adjacency(
    graph: list[Tensor], row_scale: Tensor | None, column_scale: Tensor | None
) -> Adjacency:
    contract.check_graph(graph, row_scale, column_scale)
    return Adjacency.from_tensors(graph, row_scale, column_scale)


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
        adjacency = _adjacency(graph, row_scale, column_scale)
        return run_aggregate(adjacency, weight, values.contiguous(), columns, width, None)

    def fake(
        graph: list[Tensor], row_scale: Any, column_scale: Any, weight: Any, values: Tensor,
        columns: Any, width: int,
    ) -> Tensor:  # fmt: skip
        adjacency = _adjacency(graph, row_scale, column_scale)
        contract.check_aggregate(adjacency, weight, values, columns, width)
        return values.new_empty(adjacency.num_dst, width)

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        _save_graph(ctx, inputs, tuple(inputs[3:6]))

    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        adjacency, (weight, values, columns) = _load_graph(ctx)
        needs = (ctx.needs_input_grad[3], ctx.needs_input_grad[4])
        dw, dv = grad_aggregate(REGISTERED, needs, adjacency, weight, values, columns, grad)
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
        adjacency = _adjacency(graph, row_scale, column_scale)
        return run_aggregate_t(adjacency, weight, grad.contiguous(), columns, None)

    def fake(
        graph: list[Tensor], row_scale: Any, column_scale: Any, weight: Any, grad: Tensor,
        columns: Tensor | None,
    ) -> Tensor:  # fmt: skip
        adjacency = _adjacency(graph, row_scale, column_scale)
        contract.check_aggregate_t(adjacency, weight, grad, columns)
        if columns is None:
            return grad.new_empty(adjacency.num_src, grad.shape[1])
        return grad.new_empty(columns.shape)

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        _save_graph(ctx, inputs, tuple(inputs[3:6]))

    def backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
        adjacency, (weight, grad, columns) = _load_graph(ctx)
        needs = (ctx.needs_input_grad[3], ctx.needs_input_grad[4])
        dw, dg = grad_aggregate_t(REGISTERED, needs, adjacency, weight, grad, columns, upstream)
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
        adjacency = _adjacency(graph, row_scale, column_scale)
        return run_edge_products(adjacency, values.contiguous(), columns, grad.contiguous(), None)

    def fake(
        graph: list[Tensor], row_scale: Any, column_scale: Any, values: Tensor, columns: Any,
        grad: Tensor,
    ) -> Tensor:  # fmt: skip
        adjacency = _adjacency(graph, row_scale, column_scale)
        contract.check_edge_products(adjacency, values, columns, grad)
        return grad.new_empty(adjacency.num_edges, dtype=accumulation_dtype(grad.dtype))

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        _save_graph(ctx, inputs, tuple(inputs[3:6]))

    def backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
        adjacency, (values, columns, grad) = _load_graph(ctx)
        needs = (ctx.needs_input_grad[3], ctx.needs_input_grad[5])
        dv, dg = grad_edge_products(REGISTERED, needs, adjacency, values, columns, grad, upstream)
        return [None] * ctx.graph_length, None, None, dv, None, dg

    _define(
        "edge_products", f"{_GRAPH}, Tensor values, Tensor? columns, Tensor grad", "Tensor",
        implementation, fake, backward, setup,
    )  # fmt: skip


_register_select()
_register_norm_select()
_register_norm_select_grad()
_register_scatter()
_register_pick()
_register_aggregate()
_register_aggregate_t()
_register_edge_products()
