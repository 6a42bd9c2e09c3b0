"""What training takes: a graph, features, labels and one split, checked against each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from maxk.core.errors import DataError
from maxk.graph.graph import Graph
from maxk.nn.functional import aligned

#: Logits [n, C] and labels of the same n nodes -> a score in [0, 1].
Evaluator = Callable[[Tensor, Tensor], float]
Metric = Literal["accuracy", "micro_f1", "roc_auc"]
METRICS: tuple[Metric, ...] = ("accuracy", "micro_f1", "roc_auc")
SPLITS = ("train", "val", "test")
MASKS = ("train_mask", "val_mask", "test_mask")
#: The class number of a node without a label.
UNLABELLED = -1


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A node-classification task on one graph with N nodes.

    Attributes:
        name: How reports call it.
        graph: N x N; edges as the caller of the loader requested.
        x: Features, float32 [N, F]; dense, or ``torch.sparse_csr`` where the source is sparse.
        y: Labels. Single-label: int64 [N], classes 0..C-1, -1 for an unlabelled node.
            Multi-label: float32 [N, C] of 0 and 1, a row with NaN for an unlabelled node.
        train_mask: bool [N], nodes whose labels training sees. Nodes without a label are taken out
            of all three masks, with a note.
        val_mask: bool [N], nodes that choose the epoch.
        test_mask: bool [N], nodes that are only scored.
        num_classes: C.
        metric: What the source is scored by: ``"accuracy"``, ``"micro_f1"`` or ``"roc_auc"``.
        notes: What the loader decided or found odd, a sentence each, for the user to read.
        evaluator: The source's own implementation of the metric, which then gives the scores; for
            OGB's data sets its ``Evaluator``.

    Raises:
        DataError: shapes, dtypes or devices disagree, a label is no class, or the metric is
            unknown.

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
        self._check_tensors()
        self._check_labels()
        if self.metric not in METRICS:
            raise DataError(
                f"{self.name}: metric must be one of {', '.join(METRICS)}, got {self.metric!r}"
            )
        self._drop_unlabelled()

    def _check_tensors(self) -> None:
        if not isinstance(self.graph, Graph):
            raise DataError(
                f"{self.name}: graph must be a maxk.Graph, got {type(self.graph).__name__}; "
                "make one with maxk.to_graph or maxk.Graph.from_edge_index"
            )
        nodes = self.graph.num_dst
        if self.graph.num_src != nodes:
            raise DataError(
                f"{self.name}: the graph of a data set must be square, got "
                f"{self.graph.num_src} source and {nodes} target nodes"
            )
        for field in ("x", "y", *MASKS):
            value = getattr(self, field)
            if not isinstance(value, Tensor):
                raise DataError(
                    f"{self.name}: {field} must be a tensor, got {type(value).__name__}; "
                    f"use torch.tensor({field})"
                )
            if value.device != self.graph.device:
                raise DataError(
                    f"{self.name}: {field} is on {value.device}, the graph on {self.graph.device}; "
                    "move one of them"
                )
            if value.dim() == 0 or value.shape[0] != nodes:
                raise DataError(
                    f"{self.name}: {field} must have {nodes} rows, one per node of the graph, "
                    f"got shape {list(value.shape)}"
                )
            if field in MASKS and (value.dtype != torch.bool or value.dim() != 1):
                raise DataError(
                    f"{self.name}: {field} must be bool [N], got {value.dtype} {list(value.shape)}"
                )
        if self.x.dtype != torch.float32 or self.x.dim() != 2:
            raise DataError(
                f"{self.name}: x must be float32 [N, F], got {self.x.dtype} {list(self.x.shape)}"
            )

    def _check_labels(self) -> None:
        y, classes = self.y, self.num_classes
        if type(classes) is not int or classes < 1:
            raise DataError(f"{self.name}: num_classes must be an int >= 1, got {classes!r}")
        if (y.dtype, y.dim()) not in ((torch.int64, 1), (torch.float32, 2)):
            hint = ""
            if y.dim() == 1:
                hint = "; use y.long()"
                if y.is_floating_point() and bool(y.isnan().any()):
                    hint = "; write -1 for a node without a label, then use y.long()"
            raise DataError(
                f"{self.name}: y must be int64 [N] or float32 [N, C], "
                f"got {y.dtype} {list(y.shape)}{hint}"
            )
        if self.multi_label:
            if y.shape[1] != classes:
                raise DataError(
                    f"{self.name}: y has {y.shape[1]} columns, num_classes is {classes}"
                )
            wrong = (y != 0) & (y != 1) & ~y.isnan()
            allowed = "a label is 0 or 1, and a row with NaN has none"
        else:
            wrong = (y < UNLABELLED) | (y >= classes)
            allowed = (
                f"classes are 0..{classes - 1} (num_classes is {classes}), and {UNLABELLED} means "
                "unlabelled"
            )
        if bool(wrong.any()):
            place = wrong.nonzero()[0].tolist()
            where = f"node {place[0]}" + "".join(f", column {column}" for column in place[1:])
            raise DataError(f"{self.name}: y holds {y[tuple(place)].item()} at {where}; {allowed}")

    def _drop_unlabelled(self) -> None:
        """Take nodes without a label out of the masks, and say so in the notes."""
        unlabelled = ~self.labelled
        if not bool(unlabelled.any()):
            return
        for field in MASKS:
            mask: Tensor = getattr(self, field)
            lost = int((mask & unlabelled).sum())
            if lost:
                note = f"{field}: {lost} unlabelled nodes taken out"
                object.__setattr__(self, field, mask & ~unlabelled)
                object.__setattr__(self, "notes", (*self.notes, note))

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
        moved = {field: getattr(self, field).to(device) for field in ("graph", "x", "y", *MASKS)}
        moved["x"] = aligned(moved["x"])
        return replace(self, **moved)

    def __repr__(self) -> str:
        labels = ", multi-label" if self.multi_label else ""
        return (
            f"Dataset({self.name}: {self.num_nodes} nodes, {self.graph.num_edges} edges, "
            f"{self.num_features} features, {self.num_classes} classes{labels}, {self.metric})"
        )
