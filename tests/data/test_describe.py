from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from maxk.data.describe import ModelShape, describe, estimate_memory
from maxk.data.load import load
from maxk.graph.graph import Graph
from maxk.measure.memory import added_memory
from maxk.nn import GCN, GIN, GraphSAGE


def odd_graph() -> Graph:
    """Six nodes: a repeated edge, one of them both ways, a doubled loop; node 5 alone, 4 a loop."""
    edges = [(0, 1), (0, 1), (1, 0), (2, 1), (3, 3), (3, 3), (4, 4), (2, 3)]
    return Graph.from_edge_index(torch.tensor(edges).T, 6)


def test_structure() -> None:
    facts = describe(odd_graph(), hidden=8, k=2)
    assert (facts.nodes, facts.edges) == (6, 8)
    assert (facts.degree_mean, facts.degree_median, facts.degree_max) == (8 / 6, 1, 3)
    assert (facts.out_degree_max, facts.self_loops, facts.duplicates) == (2, 3, 2)
    assert facts.isolated == 2
    # Of the distinct 0->1, 1->0, 2->1, 2->3 two have their opposite.
    assert facts.reciprocity == 0.5
    assert facts.homophily is None
    assert facts.features is None
    assert facts.weighted is False


def test_p99_is_a_degree_that_99_percent_do_not_pass() -> None:
    target = torch.cat([torch.zeros(50, dtype=torch.long), torch.arange(1, 200)])
    graph = Graph.from_edge_index(torch.stack([torch.ones_like(target), target]), 200)
    facts = describe(graph)
    assert (facts.degree_median, facts.degree_p99, facts.degree_max) == (1, 1, 50)


@pytest.mark.parametrize("nodes", [0, 3])
def test_a_graph_without_edges(nodes: int) -> None:
    facts = describe(Graph.from_edge_index(torch.empty(2, 0, dtype=torch.long), nodes))
    assert (facts.degree_mean, facts.degree_max, facts.isolated) == (0, 0, nodes)
    assert facts.reciprocity is None
    assert facts.to_text()


def test_a_bipartite_graph() -> None:
    facts = describe(Graph.from_edge_index(torch.tensor([[0, 1], [3, 2]]), (2, 4)))
    assert (facts.nodes, facts.edges) == (4, 2)
    assert facts.reciprocity is None


def dataset(folder: Path, **changes: object) -> Path:
    whole = {
        "edge_index": np.array([[0, 1, 2, 3, 0], [1, 2, 3, 0, 0]]),
        "x": np.array([[1, 0], [0, 0], [0, 0], [2, 0]]),
        "y": np.array([0, 0, -1, 1]),
        **{
            f"{part}_mask": np.eye(4, dtype=bool)[node]
            for part, node in {"train": 0, "val": 1, "test": 3}.items()
        },
    }
    np.savez(folder / "g.npz", **{**whole, **changes})  # type: ignore[arg-type]
    return folder / "g.npz"


def test_task(tmp_path: Path) -> None:
    facts = describe(dataset(tmp_path), hidden=8, layers=2, k=4)
    assert facts.name == "g"
    assert (facts.features, facts.feature_density, facts.classes) == (2, 0.25, 2)
    assert (facts.train, facts.val, facts.test, facts.unlabelled) == (1, 1, 1, 1)
    # The loop and the edges of the unlabelled node 2 do not count: 0->1 agrees, 3->0 does not.
    assert facts.homophily == 0.5
    assert facts == describe(load(dataset(tmp_path)), hidden=8, layers=2, k=4)
    text = facts.to_text()
    assert "data set     g\n" in text
    assert "split        1 train, 1 val, 1 test, 1 unlabelled" in text
    assert "note         1 of 4 nodes have no label" in text
    assert json.loads(json.dumps(facts.to_dict()))["homophily"] == 0.5


def test_a_path_takes_the_loaders_options(tmp_path: Path) -> None:
    path = dataset(tmp_path)
    assert describe(path, undirected=True, self_loops=True).edges == 12
    y = np.array([[0, 1], [1, 1], [0, 0], [1, 0]])
    assert describe(dataset(tmp_path, y=y)).homophily is None


def test_several_splits_are_described_by_the_first(tmp_path: Path) -> None:
    two = np.array([[1, 0], [1, 1], [0, 0], [0, 0]], bool)
    path = dataset(tmp_path, train_mask=two)
    assert describe(path).train == 2
    assert describe(path, split=1).train == 1


def test_a_file_without_labels_is_a_bare_graph(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("0,1,0.5\n1,2,2\n")
    facts = describe(tmp_path / "e.csv", undirected=True)
    assert (facts.name, facts.nodes, facts.edges, facts.weighted) == ("e", 3, 4, True)
    assert facts.classes is None
    assert "4 directed, weighted" in facts.to_text()
    assert "symmetric" in facts.to_text()


def test_memory_follows_the_formula() -> None:
    graph = odd_graph()
    nodes, edges, hidden, layers, k = 6, 8, 300, 2, 16
    parameters = hidden**2 + layers * (2 * hidden**2 + 4 * hidden) + hidden
    base = 16 * (nodes + 1) + 16 * edges + 4 * nodes * hidden + 16 * parameters
    base += 2 * 4 * nodes * hidden + 8 * nodes
    relu = ModelShape("sage", "relu", hidden, layers)
    assert estimate_memory(graph, relu) == base + layers * 20 * nodes * hidden
    on_gpu = base + 8 * edges + layers * 17 * nodes * hidden
    assert estimate_memory(graph, relu, device="cuda") == on_gpu
    # 300 columns need 16-bit column numbers.
    maxk = estimate_memory(graph, ModelShape("sage", "maxk", hidden, layers, k))
    assert maxk == base + layers * (8 * nodes * hidden + nodes * k * 10)


@pytest.mark.parametrize("norm", ["layer", "none"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("nonlinearity", ["maxk", "relu"])
@pytest.mark.parametrize("model", ["sage", "gcn", "gin"])
def test_memory_is_what_a_step_holds(
    model: str, nonlinearity: str, dropout: float, norm: str
) -> None:
    """The formula against the tensors of a real step."""
    data = load("synthetic:nodes=3000,degree=3,features=8,communities=3")
    shape = ModelShape(model, nonlinearity, 64, 2, 8, dropout, norm)
    network = {"sage": GraphSAGE, "gcn": GCN, "gin": GIN}[model](
        8, 64, 2, 3, k=8, nonlinearity=nonlinearity, dropout=dropout,
        norm=None if norm == "none" else norm,
    )  # fmt: skip

    def step() -> None:
        network(data.x, data.graph).square().mean().backward()

    data.graph.prepare("gcn" if model == "gcn" else "mean")
    measured = added_memory(step, "cpu")
    parameters = sum(p.numel() for p in network.parameters())
    outside = 16 * data.graph.num_edges + 16 * 3001 + 4 * 8 * 3000 + 12 * parameters
    estimate = estimate_memory(data, shape) - outside
    assert 0.94 * measured < estimate < (1.07 if norm == "layer" else 1.3) * measured


def test_bad_sizes() -> None:
    with pytest.raises(ValueError, match=r"k must lie in \[1, 8\] .*, got k=9"):
        describe(odd_graph(), hidden=8, k=9)
    with pytest.raises(ValueError, match="hidden and layers must be >= 1, got 8 and 0"):
        describe(odd_graph(), hidden=8, layers=0)
