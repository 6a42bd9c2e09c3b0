"""What training takes: a graph, features, labels and one split, checked against each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from maxk.core.errors import DataError
from maxk.nn.functional import aligned

if TYPE_CHECKING:
    from maxk.graph.graph import Graph

#: Logits [n, C] and labels of the same n nodes -> a score in [0, 1].
Evaluator = Callable[[Tensor, Tensor], float]
Metric = Literal["accuracy", "micro_f1", "roc_auc"]
METRICS: tuple[Metric, ...] = ("accuracy", "micro_f1", "roc_auc")
SPLITS = ("train", "val", "test")


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A node-classification task on one graph with N nodes.

    Attributes:
        name: How reports call it.
        graph: N x N; edges as the loader was asked to make them.
        x: Features, float32 [N, F]; dense, or ``torch.sparse_csr`` where the source is sparse.
        y: Labels. Single-label: int64 [N], classes 0..C-1, -1 for an unlabelled node.
            Multi-label: float32 [N, C] of 0 and 1, a row with NaN for an unlabelled node.
        train_mask: bool [N], nodes whose labels training sees; never an unlabelled node.
        val_mask: bool [N], nodes that choose the epoch.
        test_mask: bool [N], nodes that are only scored.
        num_classes: C.
        metric: What the source is scored by: ``"accuracy"``, ``"micro_f1"`` or ``"roc_auc"``.
        notes: What the loader decided or found odd, a sentence each, for the user to read.
        evaluator: The source's own implementation of the metric, which then gives the scores; for
            OGB's data sets its ``Evaluator``.

    Raises:
        DataError: shapes, dtypes or devices disagree, or the metric is unknown.

    Example:
        >>> from maxk.data.load import load
        >>> load("digits")
        Dataset(digits: 1797 nodes, 24680 edges, 64 features, 10 classes, accuracy)
    """

    name: str
    graph: Graph
    x: Tensor
    y: Tensor
    train_mask: Tensor
    val_mask: Tensor
    test_mask: Tensor
    num_classes: int
    metric: Metric = "accuracy"
    notes: tuple[str, ...] = ()
    evaluator: Evaluator | None = None

    def __post_init__(self) -> None:
        nodes = self.graph.num_dst
        if self.graph.num_src != nodes:
            raise DataError(
                f"{self.name}: the graph of a data set must be square, got "
                f"{self.graph.num_src} source and {nodes} target nodes"
            )
        for field in ("x", "y", "train_mask", "val_mask", "test_mask"):
            value: Tensor = getattr(self, field)
            if value.dim() == 0 or value.shape[0] != nodes:
                raise DataError(
                    f"{self.name}: {field} must have {nodes} rows, one a node of the graph, "
                    f"got shape {list(value.shape)}"
                )
            if field.endswith("mask") and (value.dtype != torch.bool or value.dim() != 1):
                raise DataError(
                    f"{self.name}: {field} must be bool [N], got {value.dtype} {list(value.shape)}"
                )
        if self.x.dtype != torch.float32 or self.x.dim() != 2:
            raise DataError(
                f"{self.name}: x must be float32 [N, F], got {self.x.dtype} {list(self.x.shape)}"
            )
        wanted = (torch.int64, 1) if self.y.dim() == 1 else (torch.float32, 2)
        if (self.y.dtype, self.y.dim()) != wanted:
            raise DataError(
                f"{self.name}: y must be int64 [N] or float32 [N, C], "
                f"got {self.y.dtype} {list(self.y.shape)}"
            )
        if self.multi_label and self.y.shape[1] != self.num_classes:
            raise DataError(
                f"{self.name}: y has {self.y.shape[1]} columns, num_classes is {self.num_classes}"
            )
        if self.metric not in METRICS:
            raise DataError(
                f"{self.name}: metric must be one of {', '.join(METRICS)}, got {self.metric!r}"
            )

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.graph.num_dst

    @property
    def num_features(self) -> int:
        """F."""
        return self.x.shape[1]

    @property
    def multi_label(self) -> bool:
        """Whether a node may carry several labels."""
        return self.y.dim() == 2

    @property
    def labelled(self) -> Tensor:
        """Which nodes have a label, bool [N]."""
        return ~self.y.isnan().any(dim=1) if self.multi_label else self.y >= 0

    def to(self, device: torch.device | str) -> Dataset:
        """The same data set on another device, on a GPU with features in aligned rows."""
        moved = {
            field: getattr(self, field).to(device)
            for field in ("graph", "x", "y", "train_mask", "val_mask", "test_mask")
        }
        moved["x"] = aligned(moved["x"])
        return replace(self, **moved)

    def __repr__(self) -> str:
        labels = ", multi-label" if self.multi_label else ""
        return (
            f"Dataset({self.name}: {self.num_nodes} nodes, {self.graph.num_edges} edges, "
            f"{self.num_features} features, {self.num_classes} classes{labels}, {self.metric})"
        )
