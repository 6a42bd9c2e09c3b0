from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from maxk.core.errors import DataError
from maxk.data.load import load
from maxk.data.synthetic import (
    SHAPES,
    SyntheticConfig,
    generate,
    node_features,
    parse_spec,
)


def degrees(edge_index: torch.Tensor, nodes: int) -> torch.Tensor:
    return torch.bincount(edge_index[1], minlength=nodes)


def test_digits() -> None:
    data = load("digits")
    assert (data.num_nodes, data.num_features, data.num_classes) == (1797, 64, 10)
    assert (float(data.x.min()), float(data.x.max())) == (0, 1)
    source, target = data.graph.edge_index()
    assert not (source == target).any()
    edges = set(zip(source.tolist(), target.tolist(), strict=True))
    assert len(edges) == data.graph.num_edges
    assert {(t, s) for s, t in edges} == edges
    assert int(data.graph.in_degrees().min()) >= 10
    masks = [data.train_mask, data.val_mask, data.test_mask]
    assert [int(mask.sum()) for mask in masks] == [100, 300, 1397]
    per_class = torch.bincount(data.y[data.train_mask])
    assert per_class.tolist() == [10] * 10
    assert "stratified one with seed 0: 100 train" in data.notes[0]
    assert not torch.equal(load("digits", seed=1).train_mask, data.train_mask)
    with pytest.raises(DataError, match="digits takes no options, got 'digits:k=3'"):
        load("digits:k=3")


@pytest.mark.parametrize("law", ["lognormal", "power", "regular"])
@pytest.mark.parametrize("order", ["random", "community"])
def test_a_synthetic_graph_is_simple_and_symmetric(law: str, order: str) -> None:
    config = parse_spec(f"synthetic:nodes=3000,degree=15,law={law},order={order},communities=7")
    graph = generate(config)
    source, target = graph.edge_index
    assert graph.edge_index.dtype == torch.int64
    keys = (source * 3000 + target).numpy()
    assert np.unique(keys).size == keys.size == config.edges == 45_000
    assert set(keys.tolist()) == set((target * 3000 + source).tolist())
    assert not (source == target).any()
    assert 0 <= int(source.min()) <= int(source.max()) < 3000
    counts = torch.bincount(graph.communities)
    assert counts.numel() == 7
    assert int(counts.max() - counts.min()) <= 1
    ascending = bool((graph.communities.diff() >= 0).all())
    assert ascending == (order == "community")
    same = graph.communities[source] == graph.communities[target]
    assert float(same.float().mean()) == pytest.approx(0.7 + 0.3 / 7, abs=0.05)


def test_degree_laws() -> None:
    nodes = 20_000
    drawn = {
        law: degrees(generate(SyntheticConfig(nodes, 20.0, law)).edge_index, nodes).double()
        for law in ("lognormal", "power", "regular")
    }
    assert all(float(degree.mean()) == 20 for degree in drawn.values())
    assert float(drawn["regular"].std()) < 1.5
    log = drawn["lognormal"].clamp_min(1).log()
    assert float(log.std()) == pytest.approx(1.15, abs=0.1)
    assert float(drawn["lognormal"].median()) == pytest.approx(20 * np.exp(-(1.15**2) / 2), abs=2)
    # An exponent of 2.5 makes the tail P(degree > d) fall as d^-1.5.
    above = [(drawn["power"] > bound).double().mean() for bound in (30, 240)]
    assert float((above[1] / above[0]).log() / np.log(8)) == pytest.approx(-1.5, abs=0.3)
    clipped = generate(SyntheticConfig(nodes, 20.0, max_degree=60))
    assert int(degrees(clipped.edge_index, nodes).max()) < 90


def test_homophily_and_sigma_do_what_they_say() -> None:
    for homophily in (0.0, 1.0):
        graph = generate(SyntheticConfig(2000, 10.0, homophily=homophily))
        same = graph.communities[graph.edge_index[0]] == graph.communities[graph.edge_index[1]]
        expected = homophily + (1 - homophily) / 10
        assert float(same.float().mean()) == pytest.approx(expected, abs=0.03)
    narrow, wide = (
        degrees(generate(SyntheticConfig(2000, 10.0, sigma=sigma)).edge_index, 2000).double().std()
        for sigma in (0.3, 1.2)
    )
    assert wide > 3 * narrow


def test_a_seed_fixes_the_graph() -> None:
    a, b, c = (generate(SyntheticConfig(500, 6.0, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(a.edge_index, b.edge_index)
    assert torch.equal(a.communities, b.communities)
    assert not torch.equal(a.edge_index, c.edge_index)


@pytest.mark.parametrize(
    ("nodes", "degree", "communities"), [(2, 1.0, 1), (50, 49.0, 5), (100, 0.1, 3), (9, 0.01, 9)]
)
def test_small_and_dense_graphs(nodes: int, degree: float, communities: int) -> None:
    config = SyntheticConfig(nodes, degree, communities=communities)
    edge_index = generate(config).edge_index
    assert edge_index.shape[1] <= config.edges
    assert edge_index.shape[1] >= 0.8 * config.edges
    assert edge_index.unique(dim=1).shape == edge_index.shape


def test_features_tell_the_community_only_in_part() -> None:
    config = SyntheticConfig(4000, 10.0, communities=5, features=32)
    communities = torch.arange(4000) % 5
    x = node_features(config, communities)
    assert (x.shape, x.dtype) == ((4000, 32), torch.float32)
    assert torch.equal(x, node_features(config, communities))
    centres = torch.stack([x[communities == c].mean(0) for c in range(5)])
    torch.testing.assert_close(centres.norm(dim=1), torch.full((5,), 1.5), atol=0.2, rtol=0)
    hit = (torch.cdist(x, centres).argmin(1) == communities).float().mean()
    assert 0.5 < float(hit) < 0.95


def test_load_synthetic() -> None:
    data = load("synthetic:nodes=1000,degree=12,communities=4,features=16")
    assert (data.num_nodes, data.graph.num_edges) == (1000, 12_000)
    assert (data.num_features, data.num_classes, data.metric) == (16, 4, "accuracy")
    other = load("synthetic:nodes=1000,degree=12,communities=4,features=16", seed=1)
    assert torch.equal(other.graph.indices, data.graph.indices)
    assert not torch.equal(other.train_mask, data.train_mask)


def test_parse_spec() -> None:
    assert parse_spec("synthetic") == SyntheticConfig()
    assert parse_spec("synthetic: nodes=50 , law = power,max_degree=30") == SyntheticConfig(
        nodes=50, law="power", max_degree=30
    )
    small = parse_spec("synthetic:flickr-like,seed=3")
    assert (small.nodes, small.edges, small.seed) == (89_250, 899_756, 3)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "synthetic:node=5",
            "synthetic: unknown option 'node'; the options are nodes, degree, law",
        ),
        ("synthetic:nodes=5.5", "synthetic: nodes must be a whole number, got '5.5'"),
        ("synthetic:degree=many", "synthetic: degree must be a number, got 'many'"),
        (
            "synthetic:orkut-like",
            "expected name=value or, first, one of reddit-like, proteins-like",
        ),
        ("synthetic:seed=1,yelp-like", "expected name=value or, first, one of"),
        ("synthetic:nodes=1", "synthetic: nodes must be >= 2, got 1"),
        ("synthetic:nodes=20,degree=20", "degree must be in (0, nodes - 1 = 19], got 20.0"),
        ("synthetic:degree=nan", "degree must be in (0, nodes - 1 = 9999], got nan"),
        ("synthetic:law=uniform", "law must be one of lognormal, power, regular, got 'uniform'"),
        ("synthetic:exponent=2", "exponent must be > 2, got 2.0"),
        ("synthetic:max_degree=3", "max_degree must be at least the mean degree, 20.0, got 3"),
        ("synthetic:communities=0", "communities must be in 1..10000, got 0"),
        ("synthetic:homophily=1.1", "homophily must be in [0, 1], got 1.1"),
        ("synthetic:order=sorted", "order must be one of random, community, got 'sorted'"),
        ("synthetic:features=0", "features must be >= 1, got 0"),
        ("synthetic:signal=-1", "signal must be >= 0, got -1.0"),
        ("synthetic:sigma=inf", "sigma must be >= 0, got inf"),
    ],
)
def test_bad_specs(spec: str, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        load(spec)


def test_named_shapes_have_the_stated_sizes() -> None:
    assert {name: (shape.nodes, shape.edges) for name, shape in SHAPES.items()} == {
        "reddit-like": (232_965, 101_283_392),
        "proteins-like": (132_534, 79_122_504),
        "products-like": (2_449_029, 123_718_280),
        "yelp-like": (716_847, 13_954_818),
        "flickr-like": (89_250, 899_756),
    }


@pytest.mark.gpu
def test_generation_on_the_gpu() -> None:
    config = SyntheticConfig(3000, 15.0)
    graph = generate(config, device="cuda")
    assert graph.edge_index.device.type == graph.communities.device.type == "cuda"
    assert graph.edge_index.shape == (2, config.edges)
    assert torch.equal(graph.edge_index, generate(config, device="cuda").edge_index)
    assert graph.edge_index.unique(dim=1).shape == graph.edge_index.shape
    assert node_features(config, graph.communities).device.type == "cuda"
