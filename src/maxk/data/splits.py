"""Which nodes train, validate and test: read from the source, or made."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from maxk.core.errors import DataError
from maxk.data.dataset import MASKS, SPLITS
from maxk.data.names import holds_ids
from maxk.data.source import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from maxk.data.labels import Labels

# With fewer members a class cannot be in all three parts of a 60/20/20 split.
RARE = 5


@dataclass(frozen=True)
class Split:
    """Three bool masks [N] and the notes about them."""

    train: Tensor
    val: Tensor
    test: Tensor
    notes: tuple[str, ...]


def choose_split(source: Source, labels: Labels, split: int | None) -> Split:
    """Take one split out of the source's masks.

    Masks are bool (or 0 and 1), [N] or [N, S] for S splits. Unlabelled nodes are taken out. Masks
    that overlap stay as they are, with a note that counts the common nodes.

    Raises:
        DataError: masks are missing, of the wrong length, empty, or hold several splits of which
            none is chosen.
    """
    missing = [mask for mask in MASKS if mask not in source.masks]
    if missing:
        held = ", ".join(source.names.get(mask, mask) for mask in source.masks)
        raise DataError(
            f"{source.origin}: holds {held} but no {', '.join(missing)}; give all three or none"
        )
    nodes = labels.labelled.shape[0]
    arrays = [_as_bool(source, mask, nodes) for mask in MASKS]
    counts = {array.shape[1] for array in arrays if array.ndim == 2}
    if len(counts) > 1:
        raise DataError(
            f"{source.origin}: the masks hold different numbers of splits: "
            + ", ".join(f"{mask} {list(a.shape)}" for mask, a in zip(MASKS, arrays, strict=True))
        )
    count = counts.pop() if counts else 1
    if split is None and count > 1:
        raise DataError(
            f"{source.origin}: holds {count} splits and none is chosen; "
            f"choose one with split=0..{count - 1} (--split)"
        )
    chosen = split or 0
    if not 0 <= chosen < count:
        raise DataError(
            f"{source.origin}: split must lie in 0..{count - 1}, as the file holds {count} "
            f"{'splits' if count > 1 else 'split'}, got split={chosen}"
        )
    masks = []
    notes = []
    for mask, array in zip(MASKS, arrays, strict=True):
        wanted = torch.from_numpy(array[:, chosen].copy() if array.ndim == 2 else array)
        kept = wanted & labels.labelled
        if not bool(kept.any()):
            of = f" of split {chosen}" if count > 1 else ""
            why = "is False for all nodes" if not bool(wanted.any()) else "holds no labelled node"
            raise DataError(f"{source.origin}: {source.called(mask)}{of} {why}")
        lost = int(wanted.sum() - kept.sum())
        if lost:
            notes.append(f"{mask}: {lost} unlabelled nodes taken out")
        masks.append(kept)
    notes += overlaps(masks)
    train, val, test = masks
    return Split(train, val, test, tuple(notes))


def overlaps(masks: list[Tensor]) -> list[str]:
    """One warning for each pair of masks that share nodes."""
    return [
        f"warning: {a} and {b} masks overlap in {int((masks[i] & masks[j]).sum())} nodes"
        for (i, a), (j, b) in combinations(enumerate(SPLITS), 2)
        if bool((masks[i] & masks[j]).any())
    ]


def make_split(
    labels: Labels,
    seed: int,
    origin: str,
    train: int | float = 0.6,
    val: int | float = 0.2,
) -> Split:
    """Draw a split of the labelled nodes with scikit-learn's ``train_test_split``.

    Single-label splits are stratified: each class is split in the same shares; classes of fewer
    than five nodes are split together with the largest class. Multi-label splits are plain random
    ones.

    Args:
        labels: Checked labels.
        seed: Same seed, same split.
        origin: What an error message names.
        train: Share or count of labelled nodes in the training set.
        val: Share or count in the validation set; the rest is the test set.

    Raises:
        DataError: fewer than three nodes are labelled.
    """
    from sklearn.model_selection import train_test_split

    nodes = labels.labelled.nonzero().squeeze(1).numpy()
    total = nodes.size
    if total < 3:
        raise DataError(
            f"{origin}: a split needs at least 3 labelled nodes, got {total}; give masks instead"
        )
    train_count, val_count = (
        max(1, round(part * total)) if isinstance(part, float) else part for part in (train, val)
    )
    train_count = min(train_count, total - 2)
    val_count = min(val_count, total - train_count - 1)
    state = seed % 2**32
    strata = None if labels.y.dim() == 2 else _strata(labels.y.numpy()[nodes])
    first, rest = train_test_split(
        np.arange(total), train_size=train_count, random_state=state, stratify=strata
    )
    second, third = train_test_split(
        rest,
        train_size=val_count,
        random_state=state,
        stratify=None if strata is None else strata[rest],
    )
    masks = []
    for part in (first, second, third):
        mask = torch.zeros_like(labels.labelled)
        mask[torch.from_numpy(nodes[part])] = True
        masks.append(mask)
    kind = "random" if strata is None else "stratified"
    note = (
        f"no split given: made a {kind} one with seed {seed}: "
        f"{first.size} train, {second.size} val, {third.size} test nodes"
    )
    return Split(masks[0], masks[1], masks[2], (note,))


def _strata(y: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Classes to stratify by, or None where there are too few nodes for that."""
    counts = np.bincount(y)
    largest = int(counts.argmax())
    if counts[largest] < RARE:
        return None
    return np.where(counts[y] < RARE, largest, y)


def _as_bool(source: Source, mask: str, nodes: int) -> NDArray[np.bool_]:
    array: NDArray[Any] = source.masks[mask]
    name = source.names.get(mask, mask)
    what = f"{source.origin}: {source.called(mask)}"
    if holds_ids(name) and array.dtype.kind != "b":
        return _from_ids(array, what, mask, nodes)
    if name.endswith("masks") and array.ndim == 2 and array.shape[0] != nodes == array.shape[1]:
        array = array.T
    if array.ndim not in (1, 2) or array.shape[0] != nodes:
        hint = "; transpose it to [N, S]" if array.ndim == 2 and array.shape[1] == nodes else ""
        if array.ndim == 1 and array.dtype.kind in "iu" and mask not in source.where:
            hint = f"; if it holds node ids, call it {mask.replace('mask', 'idx')}"
        raise DataError(
            f"{what} must have {nodes} entries, one per node, "
            f"got {array.shape[0] if array.ndim else 0} (shape {list(array.shape)}){hint}"
        )
    if array.dtype.kind not in "biuf" or not bool(((array == 0) | (array == 1)).all()):
        raise DataError(
            f"{what} must hold True and False, one for each of the {nodes} nodes, got {array.dtype}"
            f"{'' if array.dtype.kind not in 'iuf' else ' with other values than 0 and 1'}"
        )
    if array.ndim == 2 and array.shape[1] == 0:
        raise DataError(f"{what} holds no split: its shape is {list(array.shape)}")
    return array.astype(np.bool_)


def _from_ids(array: NDArray[Any], what: str, mask: str, nodes: int) -> NDArray[np.bool_]:
    """The mask of a vector of node ids."""
    if array.dtype.kind not in "iu":
        raise DataError(
            f"{what} must hold node ids as integers, got {array.dtype} {list(array.shape)}"
        )
    ids = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if ids.ndim != 1:
        raise DataError(
            f"{what} must be a vector of node ids, got shape {list(array.shape)}; several splits "
            f"are {mask}s [N, S]"
        )
    wrong = (ids < 0) | (ids >= nodes)
    if wrong.any():
        position = int(wrong.argmax())
        raise DataError(
            f"{what} holds {int(ids[position])} at position {position}; "
            f"node ids lie in 0..{nodes - 1}"
        )
    counts = np.bincount(ids.astype(np.int64), minlength=nodes)
    if counts.max(initial=0) > 1:
        node = int(counts.argmax())
        raise DataError(f"{what} names node {node} twice; if it is a mask, call it {mask}")
    return counts > 0
