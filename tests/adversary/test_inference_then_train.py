"""What is kept of a graph under inference mode serves training, with the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import maxk
from maxk.graph import cache
from maxk.interop.dgl.graph import graph_of as graph_of_dgl
from standins import StandInDGLGraph

EDGES = torch.tensor([[3, 0, 1, 4, 0, 2, 3], [1, 2, 1, 3, 1, 0, 2]])
N, E = 6, 7


def weights(seed: int = 0) -> Tensor:
    return torch.rand(E, generator=torch.Generator().manual_seed(seed)) + 0.5


def features() -> Tensor:
    return torch.randn(N, 8, generator=torch.Generator().manual_seed(1))


def adj_t(layout: torch.layout, weight: Tensor) -> Tensor:
    matrix = torch.zeros(N, N)
    matrix[EDGES[1], EDGES[0]] = weight
    return matrix.to_sparse(layout=layout)


# Makes (graph, edge_weight) as a caller does, either before inference mode or inside it.
GRAPHS: dict[str, Callable[[], tuple[Any, Tensor | None]]] = {
    "Graph": lambda: (maxk.Graph.from_edge_index(EDGES, N), None),
    "Graph with weights": lambda: (maxk.Graph.from_edge_index(EDGES, N, weights()), None),
    "Graph of CSR": lambda: (
        maxk.Graph.from_csr(
            torch.tensor([0, 1, 4, 6, 7, 7, 7]), torch.tensor([2, 1, 0, 3, 0, 3, 4]), weights()
        ),
        None,
    ),
    "transposed Graph": lambda: (
        maxk.Graph.from_edge_index(EDGES, N, weights()).transpose(), None,
    ),
    "filled Graph": lambda: (
        maxk.Graph.from_edge_index(EDGES, N, weights()).with_self_loops(), None,
    ),
    "edge_index": lambda: (EDGES.clone(), None),
    "edge_index with weights": lambda: (EDGES.clone(), weights()),
    "adj_t CSR": lambda: (adj_t(torch.sparse_csr, weights()), None),
    "adj_t CSC": lambda: (adj_t(torch.sparse_csc, weights()), None),
    "adj_t COO": lambda: (adj_t(torch.sparse_coo, weights()), None),
}  # fmt: skip


def train(graph: Any, weight: Tensor | None, reduce: str, dense: bool, learned: bool) -> Any:
    """The result and the gradients of one step."""
    x = features().requires_grad_()
    if learned and weight is not None:
        weight = weight.detach().clone().requires_grad_()
    h: Any = x.tanh() if dense else maxk.maxk(x.tanh(), 3)
    y = maxk.aggregate(graph, h, reduce, edge_weight=weight)
    y.cos().sum().backward()
    return [y.detach(), x.grad, weight.grad if learned and weight is not None else None]


def validate(graph: Any, weight: Tensor | None, reduce: str, dense: bool) -> None:
    h: Any = features() if dense else maxk.maxk(features(), 3)
    maxk.aggregate(graph, h, reduce, edge_weight=weight)


def same(got: list[Tensor | None], want: list[Tensor | None]) -> None:
    for ours, theirs in zip(got, want, strict=True):
        if theirs is None:
            assert ours is None
        else:
            assert ours is not None
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("reduce", ["sum", "mean", "gcn"])
@pytest.mark.parametrize("dense", [False, True], ids=["cbsr", "dense"])
@pytest.mark.parametrize("made", ["before", "inside"])
def test_training_after_validation(kind: str, reduce: str, dense: bool, made: str) -> None:
    want = train(*GRAPHS[kind](), reduce, dense, learned=True)
    graph, weight = GRAPHS[kind]()
    with torch.inference_mode():
        if made == "inside":
            graph, weight = GRAPHS[kind]()
        validate(graph, weight, reduce, dense)
    for _ in range(2):
        same(train(graph, weight, reduce, dense, learned=True), want)


@pytest.mark.parametrize("reduce", ["sum", "mean", "gcn"])
@pytest.mark.parametrize("learned", [False, True], ids=["constant", "learned"])
def test_weights_of_a_graph_first_met_in_inference_mode(reduce: str, learned: bool) -> None:
    def graph(weight: Tensor) -> maxk.Graph:
        return maxk.Graph.from_edge_index(EDGES, N, weight)

    def step(g: maxk.Graph) -> list[Tensor | None]:
        x = features().requires_grad_()
        maxk.aggregate(g, maxk.maxk(x, 3), reduce).cos().sum().backward()
        return [x.grad, None if g.edge_weight is None else g.edge_weight.grad]

    want = step(graph(weights().requires_grad_(learned)))
    ours = graph(weights().requires_grad_(learned))
    with torch.inference_mode():
        validate(ours, None, reduce, dense=False)
    same(step(ours), want)


@pytest.mark.parametrize("made", ["before", "inside"])
def test_learned_layers_on_sparse_features(made: str) -> None:
    def matrix() -> Tensor:
        return (features() > 0.3).float().to_sparse_csr()

    def step(x: Tensor) -> list[Tensor | None]:
        weight = torch.linspace(-1, 1, 32).reshape(4, 8).requires_grad_()
        maxk.nn.functional.linear(x, weight).cos().sum().backward()
        return [weight.grad]

    want = step(matrix())
    x = matrix()
    with torch.inference_mode():
        if made == "inside":
            x = matrix()
        maxk.nn.functional.linear(x, torch.ones(4, 8))
    same(step(x), want)


def test_a_dgl_graph() -> None:
    source = StandInDGLGraph(EDGES, (N, N))
    with torch.inference_mode():
        validate(graph_of_dgl(source, weights()), None, "gcn", dense=False)
    weight = weights().requires_grad_()
    maxk.aggregate(graph_of_dgl(source, weight), features(), "gcn").sum().backward()
    assert weight.grad is not None


def arrays_of(graph: maxk.Graph) -> list[Tensor]:
    csr = graph.adjacency("sum", torch.float32).csr
    scaled = graph.with_self_loops().adjacency("gcn", torch.float32)
    mean = graph.adjacency("mean", torch.float32)
    t = csr.transpose
    found = [csr.indptr, csr.indices, csr.order, t.indptr, t.indices, t.edges]
    found += [scaled.csr.indptr, scaled.csr.indices, scaled.csr.transpose.edges]
    found += [scaled.row_scale, mean.row_scale, *csr.schedule.tensors(), *csr.t_schedule.tensors()]
    found += [graph.transpose().adjacency("sum", torch.float32).csr.transpose.edges]
    return [tensor for tensor in found if tensor is not None]


@pytest.mark.parametrize("kind", ["edge_index", "csr", "scipy", "cached"])
def test_nothing_kept_is_an_inference_tensor(kind: str) -> None:
    edges = EDGES.clone()
    with torch.inference_mode():
        if kind == "edge_index":
            graph = maxk.Graph.from_edge_index(EDGES.clone(), N, weights())
        elif kind == "csr":
            plain = maxk.Graph.from_edge_index(EDGES, N)
            graph = maxk.Graph.from_csr(plain.indptr, plain.indices)
        elif kind == "scipy":
            plain = maxk.Graph.from_edge_index(EDGES, N)
            graph = maxk.Graph.from_scipy(maxk.interop.to_scipy(plain))
        else:
            graph = cache.graph_of(edges, N)
        arrays = arrays_of(graph)
    assert not any(array.is_inference() for array in arrays)


@pytest.mark.parametrize("layer", ["sage", "gcn", "gin"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("first", ["eager", "compiled"])
def test_a_compiled_step_after_validation(layer: str, weighted: bool, first: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    conv: Any = {
        "sage": lambda: maxk.nn.SAGEConv(8, 8),
        "gcn": lambda: maxk.nn.GCNConv(8, 8),
        "gin": lambda: maxk.nn.GINConv(torch.nn.Linear(8, 8)),
    }[layer]()
    x = features()

    def step(run: Any, graph: maxk.Graph) -> Tensor:
        conv.zero_grad()
        run(maxk.maxk(x, 3), graph).cos().sum().backward()
        return torch.cat([p.grad.flatten() for p in conv.parameters()])

    want = step(conv, maxk.Graph.from_edge_index(EDGES, N, weights() if weighted else None))
    graph = maxk.Graph.from_edge_index(EDGES, N, weights() if weighted else None)
    compiled = torch.compile(conv, backend="aot_eager")
    with torch.inference_mode():
        if layer == "gcn":
            graph.prepare("gcn")
        (compiled if first == "compiled" else conv)(maxk.maxk(x, 3), graph)
    for _ in range(2):
        torch.testing.assert_close(step(compiled, graph), want)
