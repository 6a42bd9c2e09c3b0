"""The last proof: training with the kernels follows training with a dense 0/1 mask, step by step.

The reference has the same weights, but every product in it is a dense or sparse matrix product of
torch, and MaxK is a multiplication by a mask that a stable sort makes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import maxk
from maxk.bench.epochs.networks import REDUCE, Network, Plain, sparse_product
from maxk.cbsr import CBSR, largest_columns
from maxk.data.load import load
from maxk.graph.graph import Graph
from maxk.nn.nonlinearities import Activation
from maxk.train.step import Step, Target

# Few and narrow rows. Where two entries of a row differ by a rounding error, either may survive,
# and from there on two right trainings part; with a thousand rows that happens within 50 steps.
STEPS, LAYERS, K, WIDTH = 50, 2, 4, 16
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
Task = tuple[Graph, Tensor, Target, int]


def _task(source: Tensor, target: Tensor, nodes: int, weight: Tensor | None) -> Task:
    """Labels that features and neighbours both tell."""
    draw = torch.Generator().manual_seed(1)
    classes = 4
    graph = Graph.from_edge_index(torch.stack([source, target]), nodes, edge_weight=weight)
    y = torch.arange(nodes) % classes
    x = torch.randn(nodes, 12, generator=draw) + 2 * torch.nn.functional.one_hot(y, 12)
    train = torch.randperm(nodes, generator=draw)[: nodes // 2]
    return graph, x, Target(train, y[train]), classes


def undirected() -> Task:
    """Both directions of every edge, mostly between nodes of one class."""
    draw = torch.Generator().manual_seed(0)
    nodes = 120
    a = torch.randint(nodes, (400,), generator=draw)
    b = (a + 4 * torch.randint(1, 20, (400,), generator=draw)) % nodes
    return _task(torch.cat([a, b]), torch.cat([b, a]), nodes, None)


def directed() -> Task:
    """Edges one way, with weights, repeated ones among them, a hub, and nodes without any."""
    draw = torch.Generator().manual_seed(0)
    nodes, edges = 120, 800
    source = torch.randint(nodes, (edges,), generator=draw)
    target = (source + 4 * torch.randint(0, 20, (edges,), generator=draw)) % (nodes - 8)
    target[:100] = 7
    return _task(source, target, nodes, torch.rand(edges, generator=draw) + 0.1)


def masked(h: Tensor, chosen: list[Tensor]) -> Tensor:
    """MaxK by a mask; the columns it keeps are noted."""
    columns = largest_columns(h.detach(), K)
    chosen.append(columns)
    return h * torch.zeros_like(h).scatter_(1, columns, 1.0)


def losses(step: Step) -> list[float]:
    return [float(step()) for _ in range(STEPS)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("task", [undirected, directed])
@pytest.mark.parametrize("network", ["GraphSAGE", "GCN", "GIN"])
def test_training_follows_the_dense_mask(
    device: str, task: Callable[[], Task], network: str
) -> None:
    graph, x, target, classes = task()
    graph, x = graph.to(device), x.to(device)
    target = Target(target.nodes.to(device), target.labels.to(device))
    torch.manual_seed(0)
    model: Network = getattr(maxk.nn, network)(x.shape[1], WIDTH, LAYERS, classes, k=K)
    model = model.to(device)
    chosen: list[Tensor] = []
    product = sparse_product(graph, REDUCE[type(model)], torch.float32)
    reference = Plain(model, product, lambda h: masked(h, chosen))

    kept: list[Tensor] = []

    def note(module: object, inputs: object, output: CBSR) -> None:
        kept.append(output.columns.long().sort(dim=1).values)

    hooks = [m.register_forward_hook(note) for m in model.modules() if isinstance(m, Activation)]
    mine = Step(model, lambda: model(x, graph), target)
    theirs = Step(reference, lambda: reference(x), target)
    first = float(mine()), float(theirs())
    for hook in hooks:
        hook.remove()
    # Nothing was trained yet: the very same entries survive, in every row of every layer.
    assert len(kept) == len(chosen) == LAYERS
    for layer, (a, b) in enumerate(zip(kept, chosen, strict=True)):
        assert torch.equal(a, b), f"layer {layer} keeps other columns"
    assert first[0] == pytest.approx(first[1], rel=1e-5)
    ours, wanted = losses(mine), losses(theirs)
    assert wanted[-1] < 0.8 * first[1], "the reference does not learn"
    assert ours == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("network", ["GraphSAGE", "GCN", "GIN"])
def test_a_thousand_rows_follow_in_float64(network: str) -> None:
    data = load("digits")
    nodes = data.train_mask.nonzero()[:, 0]
    target, x = Target(nodes, data.y[nodes]), data.x.double()
    torch.manual_seed(0)
    model: Network = getattr(maxk.nn, network)(x.shape[1], WIDTH, LAYERS, data.num_classes, k=K)
    product = sparse_product(data.graph, REDUCE[type(model)], torch.float64)
    reference = Plain(model, product, lambda h: masked(h, [])).double()
    model = model.double()
    mine = Step(model, lambda: model(x, data.graph), target)
    theirs = Step(reference, lambda: reference(x), target)
    assert losses(mine) == pytest.approx(losses(theirs), rel=1e-10)
