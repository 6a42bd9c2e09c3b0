"""A graph is what it was when it was made, whatever happens to the arrays around it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import Tensor

import maxk
from standins import StandInDGLGraph

EDGES = torch.tensor([[3, 0, 1, 4, 0, 2, 3], [1, 2, 1, 3, 1, 0, 2]])
N = 6
FAR = 120  # far outside the graph, and a number that every id dtype holds


def numbers(graph: maxk.Graph) -> Tensor:
    """Forward, backward and the sums of the transpose, of a graph whose caches may be empty."""
    x = torch.arange(float(2 * N)).reshape(N, 2).requires_grad_()
    y = maxk.aggregate(graph, maxk.maxk(x, 1), "sum") + maxk.aggregate(graph, x, "gcn")
    y.cos().sum().backward()
    assert x.grad is not None
    return torch.cat([y.detach(), x.grad])


def csr(dtype_of_pointers: torch.dtype, dtype_of_ids: torch.dtype) -> list[Tensor]:
    plain = maxk.Graph.from_edge_index(EDGES, N)
    return [plain.indptr.to(dtype_of_pointers), plain.indices.to(dtype_of_ids)]


DTYPES = [torch.int64, torch.int32, torch.int16, torch.uint8]


@pytest.mark.parametrize("pointers", DTYPES)
@pytest.mark.parametrize("ids", DTYPES)
@pytest.mark.parametrize("early", [False, True], ids=["caches empty", "caches full"])
def test_the_callers_row_pointers_and_ids_may_change(
    pointers: torch.dtype, ids: torch.dtype, early: bool
) -> None:
    arrays = csr(pointers, ids)
    graph = maxk.Graph.from_csr(*arrays, num_src=N)
    want = numbers(maxk.Graph.from_edge_index(EDGES, N))
    if early:
        numbers(graph)
    for array in arrays:
        array.fill_(FAR)
    assert torch.equal(numbers(graph), want)


def _sparse(layout: str) -> tuple[object, list[Tensor]]:
    dense = torch.zeros(N, N)
    dense[EDGES[1], EDGES[0]] = 2.0
    if layout == "csr":
        matrix = dense.to_sparse_csr()
        return matrix, [matrix.crow_indices(), matrix.col_indices()]
    if layout == "csc":
        matrix = dense.to_sparse_csc()
        return matrix, [matrix.ccol_indices(), matrix.row_indices()]
    matrix = dense.to_sparse_coo().coalesce()
    return matrix, [matrix.indices()]


def _scipy(kind: str) -> tuple[object, list[Tensor]]:
    dense = np.zeros((N, N), dtype=np.float32)
    dense[EDGES[1], EDGES[0]] = 2
    matrix = getattr(scipy.sparse.coo_array(dense), f"to{kind}")()
    return matrix, [torch.from_numpy(matrix.indptr), torch.from_numpy(matrix.indices)]


def _edge_list(dtype: torch.dtype) -> tuple[object, list[Tensor]]:
    edges = EDGES.to(dtype, copy=True)
    return edges, [edges]


def _numpy() -> tuple[object, list[Tensor]]:
    edges = EDGES.numpy().copy()
    return edges, [torch.from_numpy(edges)]


def _pyg(order: str | None) -> tuple[object, list[Tensor]]:
    geometric = pytest.importorskip("torch_geometric")
    edges = geometric.EdgeIndex(EDGES.clone(), sparse_size=(N, N))
    if order is not None:
        edges = edges.sort_by(order).values
    return edges, [edges.as_tensor()]


class _Kept(StandInDGLGraph):
    """Hands out its own arrays, as DGL does."""

    def __init__(self) -> None:
        super().__init__(EDGES, (N, N))
        self.kept = {form: super(_Kept, self).adj_tensors(form) for form in ("csc", "csr")}

    def adj_tensors(self, fmt: str) -> tuple[Tensor, ...]:
        return self.kept[fmt]


def _dgl() -> tuple[object, list[Tensor]]:
    source = _Kept()
    return source, [array for arrays in source.kept.values() for array in arrays]


class _SparseTensor:
    """The methods of a ``torch_sparse.SparseTensor`` that are called."""

    def __init__(self) -> None:
        self.indptr, self.indices = csr(torch.int64, torch.int32)

    def csr(self) -> tuple[Tensor, Tensor, None]:
        return self.indptr, self.indices, None

    def coo(self) -> None:
        raise NotImplementedError

    def size(self, _: int) -> int:
        return N

    def sparse_sizes(self) -> tuple[int, int]:
        return (N, N)


def _torch_sparse() -> tuple[object, list[Tensor]]:
    matrix = _SparseTensor()
    return matrix, [matrix.indptr, matrix.indices]


SOURCES: dict[str, Callable[[], tuple[object, list[Tensor]]]] = {
    "torch csr": lambda: _sparse("csr"),
    "torch csc": lambda: _sparse("csc"),
    "torch coo": lambda: _sparse("coo"),
    "scipy csr": lambda: _scipy("csr"),
    "scipy csc": lambda: _scipy("csc"),
    "edge_index int64": lambda: _edge_list(torch.int64),
    "edge_index int32": lambda: _edge_list(torch.int32),
    "numpy": _numpy,
    "EdgeIndex": lambda: _pyg(None),
    "EdgeIndex by row": lambda: _pyg("row"),
    "EdgeIndex by column": lambda: _pyg("col"),
    "DGL": _dgl,
    "SparseTensor": _torch_sparse,
}


@pytest.mark.parametrize("kind", SOURCES)
def test_the_arrays_of_another_librarys_object_may_change(kind: str) -> None:
    source, arrays = SOURCES[kind]()
    graph = maxk.to_graph(source, num_nodes=N)
    # Of other arrays, so that nothing is shared with the graph under test.
    want = numbers(maxk.to_graph(SOURCES[kind]()[0], num_nodes=N))
    for array in arrays:
        array.fill_(FAR)
    assert torch.equal(numbers(graph), want)


HANDED_OUT: dict[str, Callable[[maxk.Graph], Tensor | None]] = {
    "indptr": lambda g: g.indptr,
    "indices": lambda g: g.indices,
    "indices by NumPy": lambda g: torch.from_numpy(g.indices.numpy()),
    "indices.data": lambda g: g.indices.data,
    "edge_order": lambda g: g.edge_order,
    "edge_index": lambda g: g.edge_index(),
    "in_degrees": lambda g: g.in_degrees(),
    "out_degrees": lambda g: g.out_degrees(),
    "transpose indptr": lambda g: g.transpose().indptr,
    "transpose indices": lambda g: g.transpose().indices,
    "transpose edge_order": lambda g: g.transpose().edge_order,
    "filled indices": lambda g: g.with_self_loops().indices,
    "filled edge_order": lambda g: g.with_self_loops().edge_order,
    "same weights indices": lambda g: g.with_weight(g.edge_weight).indices,
    "same device indices": lambda g: g.to("cpu").indices,
}


@pytest.mark.parametrize("what", HANDED_OUT)
def test_what_a_graph_hands_out_may_change(what: str) -> None:
    weight = torch.linspace(0.5, 2.0, EDGES.shape[1])
    graph = maxk.Graph.from_edge_index(EDGES, N, weight)
    want = numbers(graph)
    handed = HANDED_OUT[what](graph)
    assert handed is not None
    handed.fill_(FAR)
    assert torch.equal(numbers(graph), want)
    assert torch.equal(numbers(graph.transpose().transpose()), want)


def test_arrays_made_for_other_libraries_may_change() -> None:
    graph = maxk.Graph.from_edge_index(EDGES, N, torch.ones(EDGES.shape[1]))
    want = numbers(graph)
    matrix = maxk.interop.to_scipy(graph)
    matrix.indices.fill(FAR)
    matrix.indptr.fill(FAR)
    adj_t = maxk.interop.to_adj_t(graph)
    adj_t.col_indices().fill_(FAR)
    adj_t.crow_indices().fill_(FAR)
    assert torch.equal(numbers(graph), want)


@pytest.mark.parametrize("change", ["data", "resize_", "set_"])
@pytest.mark.parametrize("kept_order", [False, True], ids=["csr", "edge_index"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "gcn"])
def test_weights_that_lose_entries_are_refused(change: str, kept_order: bool, reduce: str) -> None:
    weight = torch.ones(EDGES.shape[1])
    if kept_order:
        graph = maxk.Graph.from_edge_index(EDGES, N, weight)
    else:
        graph = maxk.Graph.from_csr(*csr(torch.int64, torch.int64), weight=weight, num_src=N)
    x = torch.ones(N, 2)
    maxk.aggregate(graph, x, reduce)
    if change == "data":
        weight.data = torch.ones(1)
    elif change == "resize_":
        weight.resize_(1)
    else:
        weight.set_(torch.ones(1).untyped_storage(), 0, (1,))
    with pytest.raises(ValueError, match=r"edge_weight must have shape \[7\].*got \[1\]"):
        maxk.aggregate(graph, x, reduce)


@pytest.mark.parametrize(
    ("part", "bad"), [(0, FAR), (0, -1), (0, 1), (1, FAR), (1, -1), (2, FAR), (2, -1), (2, 1)]
)
def test_sorted_arrays_of_dgl_that_do_not_fit_are_refused(part: int, bad: int) -> None:
    source = _Kept()
    source.kept["csc"][part][1:] = bad
    with pytest.raises(ValueError, match=r"the edge ids of the DGL graph|indptr|indices"):
        maxk.to_graph(source)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_on_two_devices_are_both_named(dtype: torch.dtype) -> None:
    indptr, indices = csr(dtype, dtype)
    with pytest.raises(ValueError, match="indptr and indices must be on one device, got meta and"):
        maxk.Graph.from_csr(indptr.to("meta"), indices)
