from __future__ import annotations

import math

import pytest
import torch

from maxk.core.errors import DataError
from maxk.train import metrics

Y = torch.tensor([[1, 0, 1], [0, 0, 1]])
SIGNS = torch.where(Y > 0, 1.0, -1.0)


def test_multi_label_loss_takes_integer_labels() -> None:
    assert metrics.loss(torch.zeros(2, 3), Y).item() == pytest.approx(0.693147, abs=1e-6)


@pytest.mark.parametrize(
    ("logits", "expected"),
    [(SIGNS, 1.0), (torch.ones(2, 3), 2 / 3), (-torch.ones(2, 3), 0.0)],
)
def test_micro_f1_of_several_labels(logits: torch.Tensor, expected: float) -> None:
    assert metrics.micro_f1(logits, Y) == pytest.approx(expected)


def test_micro_f1_with_nothing_positive_anywhere_is_zero() -> None:
    assert metrics.micro_f1(-torch.ones(2, 3), torch.zeros(2, 3)) == 0.0


def test_micro_f1_of_single_labels_is_accuracy() -> None:
    logits, y = torch.eye(4)[[0, 1, 2, 2]], torch.tensor([0, 1, 2, 3])
    assert metrics.micro_f1(logits, y) == metrics.accuracy(logits, y) == 0.75


def test_single_label_loss_is_cross_entropy() -> None:
    logits = torch.zeros(3, 4)
    assert metrics.loss(logits, torch.tensor([0, 3, 1])).item() == pytest.approx(math.log(4))


def test_roc_auc_ranks_the_second_class() -> None:
    y = torch.tensor([0, 0, 1, 1])
    logits = torch.tensor([[3.0, 0], [0, 1], [0, 0.5], [0, 2]])
    assert metrics.roc_auc(logits, y) == pytest.approx(0.75)
    assert metrics.roc_auc(-logits, y) == pytest.approx(0.25)


def test_roc_auc_leaves_out_labels_that_it_cannot_rank() -> None:
    y = torch.tensor([[0.0, 1], [1, 1], [1, 1]])
    logits = torch.tensor([[0.0, 9], [1, 0], [-1, 0]])
    assert metrics.roc_auc(logits, y) == pytest.approx(0.5)
    with pytest.raises(DataError, match="a positive and a negative node"):
        metrics.roc_auc(logits, torch.ones(3, 2))


def test_roc_auc_of_many_single_labels_is_refused() -> None:
    with pytest.raises(DataError, match="needs 2 classes, got 3"):
        metrics.roc_auc(torch.zeros(2, 3), torch.tensor([0, 1]))


def test_quick_roc_auc_is_the_same_area() -> None:
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 7, generator=random).round(decimals=1)  # with ties
    y = (torch.rand(40, 7, generator=random) < 0.3).float()
    y[:, 2] = 0  # not defined
    area = metrics.roc_auc(logits, y)
    assert metrics.quick_roc_auc(logits, y) == pytest.approx(area, abs=1e-12)
    with pytest.raises(DataError, match="a positive and a negative node in each split"):
        metrics.quick_roc_auc(logits, torch.zeros(40, 7))
