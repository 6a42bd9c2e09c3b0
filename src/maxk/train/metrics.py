"""What a model is trained on and judged by: loss and scores of node predictions.

Labels are ``[N]`` class ids, or ``[N, C]`` zeros and ones where a node may have several labels.
Scores are fractions in [0, 1]; higher is better.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from maxk.core.errors import DataError


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
    return float((logits.argmax(dim=1) == y).double().mean())


def micro_f1(logits: Tensor, y: Tensor) -> float:
    """Returns the F1 score over all node-label pairs; a pair is predicted where its logit is > 0.

    With one label a node this is the accuracy. With nothing positive in either, 0.
    """
    if y.dim() == 1:
        return accuracy(logits, y)
    predicted, truth = logits > 0, y > 0
    hits = int((predicted & truth).sum())
    total = int(predicted.sum()) + int(truth.sum())
    return 2 * hits / total if total else 0.0


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


METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {
    "accuracy": accuracy,
    "micro_f1": micro_f1,
    "roc_auc": roc_auc,
}

METRIC_NAMES = {"accuracy": "accuracy", "micro_f1": "micro-F1", "roc_auc": "ROC AUC"}


def score(metric: str, logits: Tensor, y: Tensor) -> float:
    """Returns the named score without keeping a graph for gradients."""
    with torch.no_grad():
        return METRICS[metric](logits, y)
