"""The same seed, other results."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import maxk
from maxk.train.config import TrainConfig
from maxk.train.loop import Trainer


def hub_and_ring() -> maxk.Dataset:
    """200 nodes in a ring, and node 0 linked both ways with all."""
    ids = torch.arange(200)
    hub = torch.stack([torch.zeros(199, dtype=torch.int64), ids[1:]])
    edges = torch.cat([torch.stack([ids, (ids + 1) % 200]), hub, hub.flip(0)], dim=1)
    x = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    masks = [ids % 3 == part for part in range(3)]
    graph = maxk.Graph.from_edge_index(edges, 200)
    return maxk.Dataset("hub", graph, x, (x[:, 0] > 0).long(), *masks, 2, "accuracy")


@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_same_seed_gives_the_same_bits(place):
    config = TrainConfig(hidden=16, k=4, epochs=5, seed=1, deterministic=True, device=place)

    def trained(seed: int) -> tuple[list[float], list[torch.Tensor]]:
        trainer = Trainer(replace(config, seed=seed), hub_and_ring())
        trainer.fit()
        weights = [tensor.cpu() for tensor in trainer.model.state_dict().values()]
        return [epoch.loss for epoch in trainer.history], weights

    first, again, other = trained(1), trained(1), trained(2)
    assert len(first[0]) == 5
    assert first[0] == again[0]
    assert all(torch.equal(a, b) for a, b in zip(first[1], again[1], strict=True))
    assert first[0] != other[0]
