"""Features whose rows or columns are not those of the result are refused before a kernel runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import maxk
from maxk.cbsr import CBSR
from maxk.nn import GCN, GIN, GINConv, GraphSAGE, SAGEConv
from maxk.nn.functional import add_linear, add_scaled
from maxk.ops import library  # noqa: F401  (registers the operations)
from maxk.ops.autograd import calls

REFUSED = r"must have|must share|must hold|must be|holds between"


def kept(rows: int, width: int, k: int = 4, device: torch.device | str = "cpu") -> CBSR:
    return maxk.maxk(torch.randn(rows, width, device=device), k)


def rectangle(rows: int, targets: int, device: torch.device | str = "cpu") -> maxk.Graph:
    edges = torch.tensor([[0, rows - 1], [targets - 1, 0]], device=device)
    return maxk.Graph.from_edge_index(edges, (rows, targets))


def names(error: BaseException, *sizes: int) -> bool:
    """Whether the message is one sentence that names the sizes."""
    text = str(error)
    return all(str(size) in text for size in sizes)


@pytest.mark.parametrize("targets", [2, 100_000])
@pytest.mark.parametrize("model", [GIN, GraphSAGE])
def test_model_on_a_bipartite_graph(model: Any, targets: int) -> None:
    network = model(16, 64, 1, 4, k=8)
    with pytest.raises(ValueError, match="rows") as caught:
        network(torch.randn(3, 16), rectangle(3, targets))
    assert names(caught.value, 3, targets)


def test_gcn_on_a_bipartite_graph() -> None:
    with pytest.raises(ValueError, match="square"):
        GCN(16, 64, 1, 4, k=8)(torch.randn(3, 16), rectangle(3, 100_000))


@pytest.mark.parametrize("rows", [1, 2, 7, 50_000])
@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("layer", [
    lambda: SAGEConv(64, 16), lambda: SAGEConv(64, 16, aggr="sum", normalize=True),
    lambda: GINConv(torch.nn.Linear(64, 16)),
    lambda: GINConv(torch.nn.Linear(64, 16), eps=0.5, train_eps=True),
], ids=["SAGE", "SAGE-sum", "GIN", "GIN-eps"])  # fmt: skip
def test_target_features_of_another_number_of_rows(
    layer: Callable[[], torch.nn.Module], compress: bool, rows: int
) -> None:
    target = torch.randn(rows, 64)
    pair = (kept(3, 64), maxk.maxk(target, 4) if compress else target)
    with pytest.raises(ValueError, match="rows") as caught:
        layer()(pair, rectangle(3, 5))
    assert names(caught.value, rows, 5)


@pytest.mark.parametrize("rows", [1, 7])
def test_target_features_of_another_number_of_rows_next_to_a_hook(rows: int) -> None:
    layer = SAGEConv(64, 16)
    layer.lin_r.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="rows") as caught:
        layer((kept(3, 64), kept(rows, 64)), rectangle(3, 5))
    assert names(caught.value, rows, 5)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("wide", [1, 63, 4096])
def test_target_features_of_another_width(wide: int, compress: bool) -> None:
    target = torch.randn(5, wide)
    pair = (kept(3, 64), maxk.maxk(target, 1) if compress else target)
    graph = rectangle(3, 5)
    with pytest.raises(ValueError, match="columns") as caught:
        SAGEConv((64, 32), 16)(pair, graph)
    assert names(caught.value, wide, 32)
    with pytest.raises(ValueError, match="columns") as caught:
        GINConv(torch.nn.Linear(64, 16))(pair, graph)
    assert names(caught.value, wide, 64)


def calls_that_disagree(device: torch.device | str = "cpu") -> dict[str, Callable[[], Any]]:
    """Eager operations on CBSR pieces of two sizes."""
    ops = calls()
    h, one = kept(3, 64, device=device), torch.ones(1, device=device)
    y, weight = torch.randn(9, 64, device=device), torch.randn(8, 64, device=device)
    z = torch.randn(9, 8, device=device)
    pieces = (h.values, h.columns)
    return {
        "add rows": lambda: ops.add(y, *pieces, 64, one),
        "add fewer rows": lambda: ops.add(y[:2], *pieces, 64, one),
        "add width": lambda: ops.add(torch.randn(3, 32, device=device), *pieces, 64, one),
        "add claims a width": lambda: ops.add(y[:3], *pieces, 32, one),
        "add columns of another matrix": lambda: ops.add(y[:3], h.values, h.columns[:2], 64, one),
        "add a vector of scales": lambda: ops.add(y[:3], *pieces, 64, one.expand(3)),
        "add_linear rows": lambda: ops.add_linear(z, *pieces, 64, weight),
        "add_linear width": lambda: ops.add_linear(z[:3], *pieces, 64, weight[:, :32]),
        "scatter rows": lambda: ops.scatter(h.values, h.columns[:2], 64),
        "scatter to a narrower matrix": lambda: ops.scatter(*pieces, 3),
        "scatter to a matrix of wider columns": lambda: ops.scatter(*pieces, 300),
        "pick rows": lambda: ops.pick(y, h.columns),
        "pick of wider columns": lambda: ops.pick(torch.randn(3, 300, device=device), h.columns),
    }


@pytest.mark.parametrize("case", calls_that_disagree())
def test_operation_on_pieces_that_disagree(case: str) -> None:
    with pytest.raises((ValueError, TypeError), match=REFUSED):
        calls_that_disagree()[case]()


@pytest.mark.gpu
@pytest.mark.parametrize("case", calls_that_disagree())
def test_operation_on_pieces_that_disagree_on_a_gpu(case: str) -> None:
    with pytest.raises((ValueError, TypeError), match=REFUSED):
        calls_that_disagree("cuda")[case]()
    torch.cuda.synchronize()


def registered_that_disagree() -> dict[str, Callable[[], Any]]:
    """Registered operations on pieces that no CBSR or graph could have."""
    ops = torch.ops.maxk
    h, graph = kept(3, 64), rectangle(3, 5)
    arrays = graph.adjacency("sum", torch.float32).tensors()
    values, columns, x, y = h.values, h.columns, torch.randn(3, 64), torch.randn(5, 64)
    row, gain = torch.ones(3), torch.ones(64)
    scale = torch.ones(4)
    return {
        "select more than there is": lambda: ops.select(x, 65),
        "select of a vector": lambda: ops.select(x[0], 2),
        "select of integers": lambda: ops.select(x.long(), 2),
        "norm_select gain": lambda: ops.norm_select(x, gain[:7], gain, 1e-5, 4),
        "norm_select bias": lambda: ops.norm_select(x, gain, gain[:7], 1e-5, 4),
        "norm_select k": lambda: ops.norm_select(x, gain, gain, 1e-5, 0),
        "norm_select_grad rows": lambda: ops.norm_select_grad(
            values[:2], columns[:2], x, row, row, gain
        ),
        "norm_select_grad moments": lambda: ops.norm_select_grad(
            values, columns, x, row[:2], row, gain
        ),
        "norm_select_grad weight": lambda: ops.norm_select_grad(
            values, columns, x, row, row, gain[:5]
        ),
        "norm_select_grad dtype": lambda: ops.norm_select_grad(
            values.double(), columns, x, row, row, gain
        ),
        "scatter rows": lambda: ops.scatter(values, columns[:2], 64),
        "scatter k": lambda: ops.scatter(values, columns[:, :2], 64),
        "scatter width": lambda: ops.scatter(values, columns, 300),
        "scatter more entries than columns": lambda: ops.scatter(values, columns, 3),
        "scatter int64 columns": lambda: ops.scatter(values, columns.long(), 64),
        "scatter vectors": lambda: ops.scatter(values[0], columns[0], 64),
        "scatter integers": lambda: ops.scatter(values.int(), columns, 64),
        "pick rows": lambda: ops.pick(y, columns),
        "pick int64 columns": lambda: ops.pick(x, columns.long()),
        "pick of a vector": lambda: ops.pick(x[0], columns),
        "aggregate rows": lambda: ops.aggregate(
            arrays, None, None, None, values[:2], columns[:2], 64
        ),
        "aggregate columns": lambda: ops.aggregate(
            arrays, None, None, None, values, columns[:2], 64
        ),
        "aggregate width": lambda: ops.aggregate(arrays, None, None, None, values, columns, 300),
        "aggregate dense rows": lambda: ops.aggregate(arrays, None, None, None, x[:2], None, 64),
        "aggregate dense width": lambda: ops.aggregate(arrays, None, None, None, x, None, 63),
        "aggregate weights": lambda: ops.aggregate(arrays, None, None, gain, values, columns, 64),
        "aggregate row scale": lambda: ops.aggregate(
            arrays, scale, None, None, values, columns, 64
        ),
        "aggregate column scale": lambda: ops.aggregate(
            arrays, None, scale, None, values, columns, 64
        ),
        "aggregate half a graph": lambda: ops.aggregate(
            arrays[:2], None, None, None, values, columns, 64
        ),
        "aggregate a transpose of fewer edges": lambda: ops.aggregate(
            [*arrays[:3], arrays[3][:1], arrays[4]], None, None, None, values, columns, 64
        ),
        "aggregate_t gradient rows": lambda: ops.aggregate_t(arrays, None, None, None, x, columns),
        "aggregate_t rows": lambda: ops.aggregate_t(arrays, None, None, None, y, columns[:2]),
        "aggregate_t dense rows": lambda: ops.aggregate_t(arrays, None, None, None, x, None),
        "edge_products rows": lambda: ops.edge_products(
            arrays, None, None, values[:2], columns[:2], y
        ),
        "edge_products gradient rows": lambda: ops.edge_products(
            arrays, None, None, values, columns, x
        ),
        "edge_products dtype": lambda: ops.edge_products(
            arrays, None, None, values, columns, y.double()
        ),
        "edge_products dense width": lambda: ops.edge_products(
            arrays, None, None, x[:, :63], None, y
        ),
    }  # fmt: skip


@pytest.mark.parametrize("case", registered_that_disagree())
def test_registered_operation_on_pieces_that_disagree(case: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        registered_that_disagree()[case]()


@pytest.mark.parametrize("case", ["rows", "width", "linear rows", "linear width", "dense rows"])
def test_compiled_sum_of_two_sizes(case: str) -> None:
    torch._dynamo.reset()
    graph = rectangle(3, 5)
    layer: torch.nn.Module = GINConv(torch.nn.Identity())
    if case.startswith("linear"):
        layer = SAGEConv((64, 64), 16)
    target: Any = torch.randn(*((4, 64) if case.endswith("rows") else (5, 32)))
    if case != "dense rows":
        target = maxk.maxk(target, 4)
    source = torch.randn(3, 64)
    compiled = torch.compile(
        lambda x: layer((maxk.maxk(x, 4), target), graph), fullgraph=True, backend="aot_eager"
    )
    with pytest.raises(Exception, match="must have"):
        compiled(source)


def test_columns_with_values_of_more_rows() -> None:
    h = kept(3, 64)
    with pytest.raises(ValueError, match=r"share one shape"):
        h.with_values(torch.randn(4, 4))
    compiled = torch.compile(
        lambda v: h.with_values(v).to_dense(), fullgraph=True, backend="aot_eager"
    )
    with pytest.raises(Exception, match="share one shape"):
        compiled(torch.randn(2, 4))


@pytest.mark.parametrize(("values", "columns", "width", "text"), [
    (torch.ones(2, 5), torch.zeros(2, 5, dtype=torch.uint8), 4, "between 1 and 4 entries, got 5"),
    (torch.ones(2, 0), torch.zeros(2, 0, dtype=torch.uint8), 4, "between 1 and 4 entries, got 0"),
    (torch.ones(2, 2, dtype=torch.int64), torch.zeros(2, 2, dtype=torch.uint8), 4, "float32"),
])  # fmt: skip
def test_a_cbsr_that_no_matrix_has(values: Tensor, columns: Tensor, width: int, text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        CBSR(values, columns, width)


def test_second_derivative_still_finds_its_sizes() -> None:
    h = kept(4, 6, 2)
    y, values = torch.randn(4, 6).double(), h.values.double().requires_grad_()
    scale = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 6, dtype=torch.float64, requires_grad=True)
    added = lambda v, s: add_scaled(y * 1, h.with_values(v), s)  # noqa: E731
    multiplied = lambda v, w: add_linear(y * 1, h.with_values(v), w)  # noqa: E731
    assert torch.autograd.gradgradcheck(added, (values, scale))
    assert torch.autograd.gradgradcheck(multiplied, (values, weight))
