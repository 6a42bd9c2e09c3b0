"""Labels as training wants them, and which nodes have one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from maxk.core.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True)
class Labels:
    """Checked labels.

    Attributes:
        y: int64 [N] with -1 for unlabelled nodes, or float32 [N, C] with rows of NaN.
        labelled: bool [N].
        num_classes: C.
        notes: Remarks for the user.
    """

    y: Tensor
    labelled: Tensor
    num_classes: int
    notes: tuple[str, ...]


def check_labels(raw: NDArray[Any], num_classes: int | None, what: str) -> Labels:
    """Check labels and find the unlabelled nodes.

    Args:
        raw: [N] or [N, 1] class numbers, where -1 or NaN means unlabelled; or [N, C] of 0 and 1
            (multi-label), where a row with NaN or -1 is unlabelled. Any number type.
        num_classes: C as the source says it, or None for one more than the largest class.
        what: How messages call the labels, file included.

    Raises:
        DataError: a value is no class, or disagrees with ``num_classes``.
    """
    if raw.dtype.kind not in "fiub":
        raise DataError(f"{what} must hold numbers, got {raw.dtype}; number the classes from 0")
    if raw.ndim not in (1, 2) or 0 in raw.shape[1:]:
        raise DataError(f"{what} must have shape [N] or [N, C], got {list(raw.shape)}")
    if raw.ndim == 2 and raw.shape[1] == 1:
        raw = raw[:, 0]
    labels = _single(raw, num_classes, what) if raw.ndim == 1 else _multi(raw, num_classes, what)
    missing = int((~labels.labelled).sum())
    if missing == raw.shape[0] and missing:
        raise DataError(f"{what}: none of the {missing} nodes has a label (all are -1 or NaN)")
    if not missing:
        return labels
    note = f"{missing} of {raw.shape[0]} nodes have no label (-1 or NaN): they are in no split"
    return Labels(labels.y, labels.labelled, labels.num_classes, (*labels.notes, note))


def _single(raw: NDArray[Any], num_classes: int | None, what: str) -> Labels:
    y = raw
    if raw.dtype.kind == "f":
        y = np.where(np.isnan(raw), -1, raw)
        _refuse(y != np.floor(y), raw, what, "classes are whole numbers from 0")
        _refuse(np.abs(y) > 2**53, raw, what, "classes are whole numbers from 0")
    y = y.astype(np.int64)
    _refuse(y < -1, raw, what, "classes count from 0, and -1 means unlabelled")
    largest = int(y.max()) if y.size else -1
    if num_classes is None:
        num_classes = largest + 1
    elif largest >= num_classes:
        _refuse(y >= num_classes, raw, what, f"num_classes is {num_classes}: 0..{num_classes - 1}")
    empty = num_classes - np.unique(y[y >= 0]).size
    notes = []
    if empty and largest >= 0:
        hint = ": do the classes count from 1?" if int(y[y >= 0].min()) == 1 else ""
        notes.append(f"{empty} of {num_classes} classes have no node{hint}")
    labels = torch.from_numpy(y)
    return Labels(labels, labels >= 0, num_classes, tuple(notes))


def _multi(raw: NDArray[Any], num_classes: int | None, what: str) -> Labels:
    y = raw.astype(np.float32)
    unlabelled = (np.isnan(y) | (y == -1)).any(axis=1)
    y[unlabelled] = np.nan
    wrong = (y != 0) & (y != 1) & ~np.isnan(y)
    _refuse(
        wrong,
        raw,
        what,
        f"the {raw.shape[1]} columns are read as labels that a node has (1) or not (0); "
        "give one column of class numbers for a single label, without an id column",
    )
    if num_classes is not None and num_classes != raw.shape[1]:
        raise DataError(f"{what} has {raw.shape[1]} columns, but num_classes is {num_classes}")
    notes = []
    known = y[~unlabelled]
    if known.size and bool((known.sum(axis=1) == 1).all()):
        notes.append(
            "every node has exactly one of the labels, yet they are trained as multi-label: "
            "give one column of class numbers if they exclude each other"
        )
    labels = torch.from_numpy(y)
    return Labels(labels, torch.from_numpy(~unlabelled), raw.shape[1], tuple(notes))


def _refuse(wrong: NDArray[np.bool_], raw: NDArray[Any], what: str, allowed: str) -> None:
    """Raise DataError naming the first wrong value and its position."""
    if not wrong.any():
        return
    position = [int(i) for i in np.argwhere(wrong)[0]]
    value = raw[tuple(position)]
    where = f"node {position[0]}" + (f", column {position[1]}" if len(position) == 2 else "")
    raise DataError(f"{what} holds {value} at {where}; {allowed}")
