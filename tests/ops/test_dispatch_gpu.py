from __future__ import annotations

import pytest
import torch

import maxk
from graphs import random_graph
from maxk.ops.dispatch import record

pytestmark = pytest.mark.gpu


def layer(graph, x):
    return maxk.aggregate(graph, maxk.maxk(x, 4), "mean")


def test_explain_names_a_kernel_and_its_reason():
    graph = random_graph(50, 50, 400, weighted=False).to("cuda")
    h = maxk.maxk(torch.randn(50, 64, device="cuda"), 4)
    assert "cuda (operands on a CUDA device)" in str(maxk.explain("maxk", h.to_dense(), k=4))
    for explanation in maxk.explain("aggregate", graph, h):
        assert explanation.implementation == "cuda"
        assert ": " in explanation.plan


def test_backward_is_recorded_and_keeps_the_override():
    graph = random_graph(50, 50, 400, weighted=False).to("cuda")
    x = torch.randn(50, 64, device="cuda", requires_grad=True)
    with record() as recorder:
        layer(graph, x).sum().backward()
    assert set(recorder.seconds) == {"maxk", "spgemm", "sspmm"}
    with maxk.implementation("reference"):
        y = layer(graph, x)
    want, got = torch.autograd.grad(y.sum(), x)[0], torch.autograd.grad(layer(graph, x).sum(), x)[0]
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("network", ["GraphSAGE", "GCN", "GIN"])
@pytest.mark.parametrize("nonlinearity", ["maxk", "relu"])
def test_compiled_model_equals_eager(network, nonlinearity):
    torch.manual_seed(0)
    torch._dynamo.reset()
    torch.set_float32_matmul_precision("highest")
    model = getattr(maxk.nn, network)(6, 16, 2, 3, k=4, nonlinearity=nonlinearity).cuda()
    graph = random_graph(40, 40, 300, weighted=False).to("cuda").prepare("gcn").prepare("sum")
    graph.prepare("mean")
    x = torch.randn(40, 6, device="cuda", requires_grad=True)
    compiled = torch.compile(model, fullgraph=True)
    results = []
    for f in (compiled, model):
        y = f(x, graph)
        results.append((y, *torch.autograd.grad(y.sin().sum(), [x, *model.parameters()])))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_models_agree_with_the_cpu():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    for network in ("GraphSAGE", "GCN", "GIN"):
        model = getattr(maxk.nn, network)(20, 64, 2, 3, k=8)
        graph = random_graph(300, 300, 4000, weighted=False)
        x = torch.randn(300, 20)
        want = model(x, graph)
        got = model.cuda()(x.cuda(), graph.to("cuda"))
        torch.testing.assert_close(got.cpu(), want, rtol=1e-3, atol=1e-4)
        sparse = model(x.cuda().to_sparse_csr(), graph.to("cuda"))
        torch.testing.assert_close(sparse, got, rtol=1e-3, atol=1e-4)
