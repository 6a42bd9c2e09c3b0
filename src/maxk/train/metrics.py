"""What a model is trained on and judged by: loss and scores of node predictions.

Labels are ``[N]`` class ids, or ``[N, C]`` zeros and ones where a node may have several labels.
Scores are fractions in [0, 1]; higher is better.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from maxk.core.errors import DataError
from maxk.data.catalog import METRIC_TITLES
from maxk.data.dataset import Dataset, Evaluator


def loss(logits: Tensor, y: Tensor) -> Tensor:
    """Returns the mean loss: cross entropy for ``[N]`` labels, binary cross entropy for ``[N, C]``.

    Args:
        logits: ``[N, C]``, floating point.
        y: ``[N]`` class ids, or ``[N, C]`` zeros and ones of any dtype.
    """
    if y.dim() == 2:
        return functional.binary_cross_entropy_with_logits(logits, y.to(logits.dtype))
    return functional.cross_entropy(logits, y)


def accuracy(logits: Tensor, y: Tensor) -> float:
    """Returns the share of nodes whose largest logit is the label's."""
    return float(_accuracy(logits, y))


def _accuracy(logits: Tensor, y: Tensor) -> Tensor:
    return (logits.argmax(dim=1) == y).double().mean()


def micro_f1(logits: Tensor, y: Tensor) -> float:
    """Returns the F1 score over all node-label pairs; a pair is predicted where its logit is > 0.

    With one label a node this is the accuracy. With nothing positive in either, 0.
    """
    return float(_micro_f1(logits, y))


def _micro_f1(logits: Tensor, y: Tensor) -> Tensor:
    if y.dim() == 1:
        return _accuracy(logits, y)
    predicted, truth = logits > 0, y > 0
    hits, total = (predicted & truth).sum(), predicted.sum() + truth.sum()
    return 2 * hits.double() / total.clamp(min=1)


def roc_auc(logits: Tensor, y: Tensor) -> float:
    """Returns the area under the ROC curve; for several labels, the mean over those defined.

    A label is defined where the nodes hold both a positive and a negative.

    Raises:
        DataError: no label is defined, or single labels name more than two classes.
    """
    from sklearn.metrics import roc_auc_score

    if y.dim() == 1:
        if logits.shape[1] != 2:
            raise DataError(
                f"ROC AUC of single labels needs 2 classes, got {logits.shape[1]}; "
                "score this data set by accuracy"
            )
        scores, truth = (logits[:, 1] - logits[:, 0])[:, None], (y == 1)[:, None]
    else:
        scores, truth = logits, y > 0
    defined = (truth.any(dim=0) & (~truth).any(dim=0)).nonzero()[:, 0].tolist()
    if not defined:
        raise DataError("ROC AUC needs a positive and a negative node in each split, found none")
    columns = scores.detach().double().cpu().numpy()
    labels = truth.cpu().numpy()
    areas = [float(roc_auc_score(labels[:, c], columns[:, c])) for c in defined]
    return sum(areas) / len(areas)


def _roc_auc(logits: Tensor, y: Tensor) -> Tensor:
    """The area by ranks (Mann and Whitney), ties at their mean rank; NaN where none is defined."""
    single = y.dim() == 1
    scores = (logits[:, 1] - logits[:, 0])[None] if single else logits.t().contiguous()
    truth = (y == 1)[None] if single else (y > 0).t()
    ordered = scores.sort(dim=1).values
    below = torch.searchsorted(ordered, scores)
    upto = torch.searchsorted(ordered, scores, right=True)
    rank = (below + upto + 1).double() / 2
    positive = truth.sum(dim=1).double()
    pairs = positive * (truth.shape[1] - positive)
    above = (rank * truth).sum(dim=1) - positive * (positive + 1) / 2
    defined = pairs > 0
    return (above / pairs.clamp(min=1) * defined).sum() / defined.sum()


class Metric(NamedTuple):
    """One way to score.

    Attributes:
        title: Its name for people.
        score: The score as a number.
        on_device: The score as a float64 scalar on the device; NaN where it is not defined.
    """

    title: str
    score: Callable[[Tensor, Tensor], float]
    on_device: Callable[[Tensor, Tensor], Tensor]


#: By the names that data sets give them.
METRICS = {
    "accuracy": Metric(METRIC_TITLES["accuracy"], accuracy, _accuracy),
    "micro_f1": Metric(METRIC_TITLES["micro_f1"], micro_f1, _micro_f1),
    "roc_auc": Metric(METRIC_TITLES["roc_auc"], roc_auc, _roc_auc),
}


def score(metric: str, logits: Tensor, y: Tensor) -> float:
    """Returns the named score without keeping a graph for gradients."""
    with torch.no_grad():
        return METRICS[metric].score(logits, y)


def score_on_device(metric: str, logits: Tensor, y: Tensor) -> Tensor:
    """Returns the named score as a float64 scalar on the device of the logits.

    Nothing waits for the device, so a CUDA graph can hold the call. An ROC AUC of which no label is
    defined is NaN.
    """
    with torch.no_grad():
        return METRICS[metric].on_device(logits, y)


def quick_roc_auc(logits: Tensor, y: Tensor) -> float:
    """Returns :func:`roc_auc` by ranks on the device of the logits, all labels at once.

    Raises:
        DataError: no label is defined.
    """
    area = float(score_on_device("roc_auc", logits, y))
    if math.isnan(area):
        raise DataError("ROC AUC needs a positive and a negative node in each split, found none")
    return area


class Judge:
    """Scores logits on the splits of a data set.

    Args:
        dataset: On the device of the logits.

    Attributes:
        nodes: int64 node ids of ``train``, ``val`` and ``test``.
        labels: Their labels.

    Raises:
        DataError: a split holds no nodes.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        masks = {"train": dataset.train_mask, "val": dataset.val_mask, "test": dataset.test_mask}
        self.nodes = {name: mask.nonzero()[:, 0] for name, mask in masks.items()}
        for name, indices in self.nodes.items():
            if indices.numel() == 0:
                raise DataError(
                    f"{dataset.name}: the {name} split holds no nodes, so it has no score"
                )
        self.labels = {name: dataset.y[indices] for name, indices in self.nodes.items()}

    def scores(self, logits: Tensor, *, final: bool = False) -> dict[str, float]:
        """Returns the score of each split.

        Args:
            logits: [N, C].
            final: Whether an evaluator that the data set brings gives every score. Otherwise the
                areas of many tasks, which cost it seconds on a CPU, are taken on the device.
        """
        data = self._dataset
        judge: Evaluator = functools.partial(score, data.metric)
        if data.evaluator is not None:
            many = data.multi_label and data.metric == "roc_auc"
            judge = quick_roc_auc if many and not final else data.evaluator
        return {n: judge(logits[nodes], self.labels[n]) for n, nodes in self.nodes.items()}
