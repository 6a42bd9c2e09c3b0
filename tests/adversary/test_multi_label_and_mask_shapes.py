"""Several labels per node, several splits per mask, masks of another length."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from maxk.core.errors import DataError
from maxk.data.load import load
from maxk.train import metrics
from maxk.train.config import TrainConfig
from maxk.train.loop import Trainer


def test_several_labels_per_node_train_and_are_scored(tmp_path):
    y = torch.tensor([[1, 0, 1], [0, 0, 1]])
    path = tmp_path / "labels.npz"
    every = np.array([True, True])
    np.savez(path, edge_index=np.array([[0], [1]]), x=np.eye(2), y=y.numpy().astype(np.int64),
             train_mask=every, val_mask=every, test_mask=every)  # fmt: skip
    data = load(path)
    assert (data.num_classes, data.metric) == (3, "micro_f1")
    config = TrainConfig(hidden=4, k=2, layers=1, epochs=1, device="cpu")
    trainer = Trainer(config, data)
    assert trainer.predict().shape == (2, 3)
    assert math.isfinite(trainer.train_epoch().loss)
    assert metrics.loss(torch.zeros(2, 3), y).item() == pytest.approx(0.693147, abs=1e-6)
    signs = torch.where(y > 0, 1.0, -1.0)
    for logits, want in [(signs, 1.0), (torch.ones(2, 3), 0.666667), (-torch.ones(2, 3), 0.0)]:
        assert metrics.micro_f1(logits, y) == pytest.approx(want, abs=1e-6)


def test_masks_of_another_shape_are_refused_or_chosen_from(tmp_path):
    columns = np.array([[1, 0], [0, 1], [0, 1], [1, 0]], bool)

    def saved(**masks):
        path = tmp_path / "masks.npz"
        np.savez(path, edge_index=np.array([[0], [1]]), x=np.eye(4), y=np.array([0, 1, 0, 1]),
                 **{name: np.array(mask, bool) for name, mask in masks.items()})  # fmt: skip
        return path

    rest = dict(val_mask=[0, 1, 0, 0], test_mask=[0, 0, 1, 0])
    with pytest.raises(DataError, match=r"masks.npz.*holds 2 splits"):
        load(saved(train_mask=columns, **rest))
    chosen = load(saved(train_mask=columns, **rest), split=0)
    assert chosen.train_mask.nonzero().flatten().tolist() == [0, 3]
    with pytest.raises(DataError, match="train_mask must have 4 entries, one per node, got 5"):
        load(saved(train_mask=[1, 0, 0, 1, 0], **rest))
    with pytest.raises(DataError, match="train_mask is False for all nodes"):
        load(saved(train_mask=[0, 0, 0, 0], **rest))
    both = load(saved(train_mask=[1, 0, 1, 0], **rest))
    assert both.notes == ("warning: train and test masks overlap in 1 nodes",)
