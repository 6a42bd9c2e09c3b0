from __future__ import annotations

import pytest
import torch

import maxk
from graphs import random_graph
from maxk.ops import library  # noqa: F401  (registers the operations)


def operands(dtype, reduce="mean", k=3):
    graph = random_graph(13, 13, 60, weighted=True, dtype=dtype)
    accumulate = torch.float64 if dtype == torch.float64 else torch.float32
    a = graph.adjacency(reduce, accumulate)
    scales = (a.row_scale, a.column_scale)
    weight = graph.weight.detach().requires_grad_()
    x = torch.randn(13, 10, dtype=dtype, requires_grad=True)
    h = maxk.maxk(x.detach(), k)
    return a.tensors(), scales, weight, x, h.values.requires_grad_(), h.columns


CHECKS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("op", [
    "select", "norm_select", "norm_select_grad", "scatter", "pick", "aggregate", "aggregate-dense",
    "aggregate_t", "aggregate_t-dense", "edge_products", "edge_products-dense",
])  # fmt: skip
def test_opcheck(op, dtype):
    graph, scales, weight, x, values, columns = operands(dtype)
    ops = torch.ops.maxk
    gain = torch.linspace(0.5, 1.5, 10, dtype=dtype, requires_grad=True)
    shift = torch.linspace(-1, 1, 10, dtype=dtype, requires_grad=True)
    moments = (x.detach().mean(1), x.detach().var(1, correction=0).rsqrt())
    call, arguments = {
        "select": (ops.select, (x, 3)),
        "norm_select": (ops.norm_select, (x, gain, shift, 1e-5, 3)),
        "norm_select_grad": (
            ops.norm_select_grad,
            (values.detach(), columns, x.detach(), *moments, gain.detach()),
        ),
        "scatter": (ops.scatter, (values, columns, 10)),
        "pick": (ops.pick, (x, columns)),
        "aggregate": (ops.aggregate, (graph, *scales, weight, values, columns, 10)),
        "aggregate-dense": (ops.aggregate, (graph, *scales, weight, x, None, 10)),
        "aggregate_t": (ops.aggregate_t, (graph, *scales, weight, x, columns)),
        "aggregate_t-dense": (ops.aggregate_t, (graph, *scales, weight, x, None)),
        "edge_products": (ops.edge_products, (graph, *scales, values, columns, x)),
        "edge_products-dense": (ops.edge_products, (graph, *scales, x, None, x)),
    }[op]
    result = torch.library.opcheck(call.default, arguments, test_utils=CHECKS)
    assert set(result.values()) == {"SUCCESS"}


@pytest.mark.parametrize("reduce", ["sum", "gcn"])
def test_gradcheck_of_registered_operations(reduce):
    graph, scales, weight, _, values, columns = operands(torch.float64, reduce)
    forward = lambda w, v: torch.ops.maxk.aggregate(graph, *scales, w, v, columns, 10)  # noqa: E731
    assert torch.autograd.gradcheck(forward, (weight, values))
    assert torch.autograd.gradgradcheck(forward, (weight, values))


def run(model, x, graph):
    x = x.clone().requires_grad_()
    model.zero_grad()
    y = model(x, graph)
    y.sin().sum().backward()
    return y.detach(), x.grad, [p.grad.clone() for p in model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("network", ["GraphSAGE", "GCN", "GIN"])
@pytest.mark.parametrize("nonlinearity", ["maxk", "relu"])
def test_compiled_model_equals_eager(network, nonlinearity):
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = getattr(maxk.nn, network)(6, 8, 2, 3, k=2, nonlinearity=nonlinearity)
    graph = random_graph(20, 20, 90, weighted=False).prepare("gcn")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = torch.randn(20, 6)
    for got, want in zip(run(compiled, x, graph), run(model, x, graph), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.slow
def test_sizes_change_with_one_recompilation():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = maxk.nn.GraphSAGE(4, 8, 2, 3, k=2)
    compiled = torch.compile(model, fullgraph=True)
    graphs = 0
    for n in (3, 5, 7):
        path = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
        graph, x = maxk.Graph.from_edge_index(path), torch.randn(n, 4)
        for got, want in zip(run(compiled, x, graph), run(model, x, graph), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        if n == 5:
            graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs == 2
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


def test_unprepared_graph_inside_compile_says_the_cure():
    torch._dynamo.reset()
    graph = random_graph(5, 5, 9, weighted=False)
    compiled = torch.compile(
        lambda x: maxk.aggregate(graph, x, "gcn"), fullgraph=True, backend="eager"
    )
    with pytest.raises(Exception, match=r"graph.prepare\('gcn'\)"):
        compiled(torch.randn(5, 3))


@pytest.mark.parametrize("learn", [False, True])
def test_compiled_normalisation_sees_the_present_weights(learn):
    torch._dynamo.reset()
    edges = random_graph(9, 9, 40, weighted=False).edge_index()
    weight = torch.rand(40, generator=torch.Generator().manual_seed(0)).requires_grad_(learn)
    graph = maxk.Graph.from_edge_index(edges, 9, weight).prepare("gcn")
    compiled = torch.compile(
        lambda x: maxk.aggregate(graph, x, "gcn"), fullgraph=True, backend="aot_eager"
    )
    x = torch.linspace(-1, 1, 45).reshape(9, 5)
    for _ in range(2):
        fresh = maxk.Graph.from_edge_index(edges, 9, weight.detach().clone())
        torch.testing.assert_close(compiled(x), maxk.aggregate(fresh, x, "gcn"))
        with torch.no_grad():
            weight.add_(1)


def test_export_keeps_the_operation():
    class Layer(torch.nn.Module):
        def forward(self, x):
            return maxk.maxk(x, 2).values

    exported = torch.export.export(Layer(), (torch.randn(5, 4),))
    targets = [str(node.target) for node in exported.graph.nodes]
    assert any("maxk.select" in target for target in targets)
