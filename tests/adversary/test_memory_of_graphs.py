"""A graph that nobody holds is gone at once, without the garbage collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch

import maxk
from maxk.graph import cache

EDGES = torch.tensor([[3, 0, 1, 4, 0, 2, 3], [1, 2, 1, 3, 1, 0, 2]])
LOOPS = torch.arange(6).expand(2, -1)
N = 6


@pytest.fixture(autouse=True, scope="module")
def no_collector() -> Iterator[None]:
    for weighted in (False, True):
        step(new(complete=False, weighted=weighted), "sum")  # compiling leaves cycles behind
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def new(*, complete: bool, weighted: bool) -> maxk.Graph:
    edges = torch.cat([EDGES, LOOPS], 1) if complete else EDGES.clone()
    return maxk.Graph.from_edge_index(edges, N, torch.ones(edges.shape[1]) if weighted else None)


def step(graph: object, reduce: str) -> None:
    x = torch.randn(N, 8, requires_grad=True)
    for h in (x, maxk.maxk(x, 2)):
        maxk.aggregate(graph, h, reduce).sum().backward()


USES: dict[str, Callable[[maxk.Graph], object]] = {
    "sum": lambda g: step(g, "sum"),
    "mean": lambda g: step(g, "mean"),
    "gcn": lambda g: step(g, "gcn"),
    "with_self_loops": lambda g: g.with_self_loops().with_self_loops(),
    "gcn of the filled": lambda g: step(g.with_self_loops(), "gcn"),
    "transpose": lambda g: g.transpose(),
    "transpose of the transpose": lambda g: step(g.transpose().transpose(), "sum"),
    "filled transpose": lambda g: step(g.transpose().with_self_loops().transpose(), "gcn"),
    "with_weight": lambda g: g.with_weight(g.edge_weight),
    "prepare": lambda g: g.prepare("gcn").prepare("mean"),
    "to": lambda g: g.to("cpu"),
    "schedules": lambda g: [
        s.tensors()
        for a in [g.adjacency("sum", torch.float32).csr]
        for s in (a.schedule, a.t_schedule)
    ],
    "other libraries": lambda g: (maxk.interop.to_scipy(g), maxk.interop.to_adj_t(g)),
    "repr": repr,
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("complete", [False, True], ids=["loops missing", "loops there"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_a_used_graph_is_gone_with_its_last_name(use: str, complete: bool, weighted: bool) -> None:
    graph = new(complete=complete, weighted=weighted)
    USES[use](graph)
    csr = graph.adjacency("sum", torch.float32).csr
    arrays = [csr.indptr, csr.indices, csr.transpose.edges]
    followed = [weakref.ref(array) for array in arrays]
    del graph, csr, arrays
    assert [ref() for ref in followed] == [None] * len(followed)


@pytest.mark.parametrize("reduce", ["sum", "gcn"])
@pytest.mark.parametrize("kind", ["edge_index", "adj_t", "EdgeIndex"])
def test_a_converted_graph_is_gone_with_its_owner(kind: str, reduce: str) -> None:
    def owner() -> torch.Tensor:
        if kind == "adj_t":
            dense = torch.eye(N)
            return dense.to_sparse_csr()
        if kind == "EdgeIndex":
            geometric = pytest.importorskip("torch_geometric")
            return geometric.EdgeIndex(LOOPS.clone(), sort_order="col")
        return LOOPS.clone()

    edges = owner()
    step(edges, reduce)
    graph = cache.graph_of(edges, (N, N))
    array = weakref.ref(graph.adjacency("sum", torch.float32).csr.indices)
    before = len(cache._entries)
    del graph, edges
    assert array() is None
    assert len(cache._entries) == before - 1


@pytest.mark.parametrize("complete", [False, True], ids=["loops missing", "loops there"])
def test_two_hundred_graphs_take_the_memory_of_one(complete: bool) -> None:
    def tensors() -> int:
        return sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects())

    step(new(complete=complete, weighted=True), "gcn")
    before = tensors()
    for _ in range(200):
        step(new(complete=complete, weighted=True), "gcn")
    assert tensors() <= before + 5
