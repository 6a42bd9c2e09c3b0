"""Models inside torch.compile and DataParallel that broke, or lost edges between replicas."""

from __future__ import annotations

import pytest
import torch

import maxk
from adversary.tiny import graph_of, same


@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_compiled_model_has_no_graph_break(place):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    model = maxk.nn.GraphSAGE(4, 8, 2, 3, k=2).to(place)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for nodes in (3, 5, 7):
        ids = torch.arange(nodes - 1, device=place)
        graph = maxk.Graph.from_edge_index(torch.stack([ids, ids + 1]), nodes)
        results = []
        for call in (compiled, model):
            x = torch.linspace(-2, 2, 4 * nodes, device=place).sin().reshape(nodes, 4)
            x.requires_grad_()
            model.zero_grad()
            y = call(x, graph)
            y.square().sum().backward()
            results.append([y, x.grad, *[p.grad.clone() for p in model.parameters()]])
        assert results[0][0].shape == (nodes, 3)
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
    assert not torch._dynamo.utils.counters["graph_break"]


def path_conv(device) -> tuple[torch.nn.Module, maxk.Graph, torch.Tensor]:
    conv = maxk.nn.SAGEConv(1, 1, aggr="sum", root_weight=False, bias=False).to(device)
    torch.nn.init.ones_(conv.lin_l.weight)
    x = torch.tensor([[1.0], [2], [3], [4]], device=device)
    return conv, graph_of([(0, 3)], 4, device=device), x


@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_data_parallel_over_one_device_works(place):
    conv, graph, x = path_conv(place)
    parallel = torch.nn.DataParallel(conv, device_ids=None if place == "cpu" else [0])
    same(parallel(x, graph), [[0], [0], [0], [1]])


@pytest.mark.multigpu
def test_data_parallel_over_two_gpus_is_refused():
    conv, graph, x = path_conv("cuda:0")
    with pytest.raises(RuntimeError, match="DistributedDataParallel"):
        torch.nn.DataParallel(conv, device_ids=[0, 1])(x, graph)
