"""Nodes without a label stand in the masks of a data set made by hand, and were scored as wrong."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import maxk
from maxk.core.errors import DataError
from maxk.train import metrics
from maxk.train.config import TrainConfig
from maxk.train.loop import Trainer

CONFIG = TrainConfig(hidden=4, k=2, layers=1, epochs=3, device="cpu", dropout=0.0)
ALL = torch.ones(4, dtype=torch.bool)


def made(y: Any, **changes: Any) -> maxk.Dataset:
    graph = maxk.Graph.from_edge_index(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), 4)
    parts: dict[str, Any] = {
        "name": "hand", "graph": graph, "x": torch.eye(4), "y": y, "train_mask": ALL,
        "val_mask": ALL, "test_mask": ALL, "num_classes": 2, **changes,
    }  # fmt: skip
    return maxk.Dataset(**parts)


@pytest.mark.parametrize(
    ("y", "labelled"),
    [
        (torch.tensor([0, 1, -1, 1]), [0, 1, 3]),
        (torch.tensor([[1.0, 0], [0, 1], [math.nan, 1], [1, 1]]), [0, 1, 3]),
        (torch.tensor([[1.0, 0], [0, 1], [math.nan, math.nan], [1, 1]]), [0, 1, 3]),
    ],
)
def test_a_node_without_a_label_is_in_no_mask(y: torch.Tensor, labelled: list[int]) -> None:
    mask = ALL.clone()
    data = made(y, metric="accuracy" if y.dim() == 1 else "micro_f1", test_mask=mask)
    for part in (data.train_mask, data.val_mask, data.test_mask):
        assert part.nonzero().flatten().tolist() == labelled
    assert mask.all(), "the caller's mask stays as it was"
    assert data.notes == tuple(
        f"{part}_mask: 1 unlabelled nodes taken out" for part in ("train", "val", "test")
    )
    assert replace(data, name="again").notes == data.notes


def test_training_and_scores_count_three_of_four_nodes() -> None:
    trainer = Trainer(CONFIG, made(torch.tensor([0, 1, -1, 1])))
    summary = trainer.fit()
    assert math.isfinite(trainer.history[-1].loss)
    kept = trainer.predict()[[0, 1, 3]]
    share = metrics.accuracy(kept, torch.tensor([0, 1, 1]))
    assert share in (0, 1 / 3, 2 / 3, 1)
    assert trainer.evaluate() == {"train": share, "val": share, "test": share}
    assert summary["test"] in (pytest.approx(n / 3) for n in range(4))


def test_a_label_taken_away_later_is_not_scored_either() -> None:
    y = torch.tensor([0, 1, 0, 1])
    data = made(y)
    y[2] = -1
    trainer = Trainer(CONFIG, data)
    trainer.fit()
    assert trainer.evaluate()["test"] in (pytest.approx(n / 3) for n in range(4))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": torch.tensor([0, 1, -100, 1])}, "y holds -100 at node 2; classes are 0..1"),
        ({"y": torch.tensor([0, 2, 0, 1])}, "y holds 2 at node 1; classes are 0..1 (num_classes"),
        ({"y": torch.tensor([0, 1, math.nan, 1])},
         "y must be int64 [N] or float32 [N, C], got torch.float32 [4]; write -1 for a node"),
        ({"y": torch.tensor([0, 1, 1, 1], dtype=torch.int32)},
         "y must be int64 [N] or float32 [N, C], got torch.int32 [4]; use y.long()"),
        ({"y": torch.tensor([[0.0, 1], [1, 1], [-1, 0], [0, 0]])},
         "y holds -1.0 at node 2, column 0; a label is 0 or 1, and a row with NaN has none"),
        ({"y": torch.tensor([[0.0, 1], [1, 1], [0.5, 0], [0, 0]])}, "y holds 0.5 at node 2"),
        ({"y": [0, 1, 0, 1]}, "y must be a tensor, got list; use torch.tensor(y)"),
        ({"x": np.eye(4, dtype=np.float32)}, "x must be a tensor, got ndarray"),
        ({"train_mask": [True] * 4}, "train_mask must be a tensor, got list"),
        ({"val_mask": np.ones(4, bool)}, "val_mask must be a tensor, got ndarray"),
        ({"test_mask": torch.ones(3, dtype=torch.bool)}, "test_mask must have 4 rows"),
        ({"test_mask": torch.tensor([0, 3])}, "test_mask must have 4 rows"),
        ({"test_mask": torch.tensor([0, 1, 1, 0])}, "test_mask must be bool [N], got torch.int64"),
        ({"num_classes": 2.0}, "num_classes must be an int >= 1, got 2.0"),
        ({"num_classes": 0}, "num_classes must be an int >= 1, got 0"),
        ({"x": torch.eye(4, device="meta")}, "x is on meta, the graph on cpu; move one"),
        ({"graph": torch.tensor([[0], [1]])}, "graph must be a maxk.Graph, got Tensor"),
    ],
)  # fmt: skip
def test_what_breaks_the_contract_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(f"hand: {message}")) as caught:
        made(**{"y": torch.tensor([0, 1, 0, 1]), **changes})
    assert "\n" not in str(caught.value)


def test_a_split_of_unlabelled_nodes_has_no_score() -> None:
    data = made(torch.tensor([0, 1, -1, 1]), test_mask=torch.tensor([False, False, True, False]))
    with pytest.raises(DataError, match="the test split holds no"):
        Trainer(CONFIG, data)
