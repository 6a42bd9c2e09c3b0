"""What other libraries call features, labels and splits in a file of named arrays."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from maxk.core.errors import DataError

FEATURES = ("x", "features", "feats", "feat", "node_features", "node_feats", "node_feat")
LABELS = ("y", "labels", "label", "node_labels", "node_label")
_PARTS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
_MASKS = ("mask", "masks")
_IDS = ("idx", "index", "indices", "ids", "nodes")
_LIKE_SPLIT = re.compile(r"(^|_)(train|val|valid|validation|test|splits?|folds?|masks?)(_|$)")


def pick(names: Mapping[str, object], known: Iterable[str], path: Path) -> str | None:
    """Return the one of some known names that a file holds, or None.

    Raises:
        DataError: it holds two of them.
    """
    present = [name for name in known if name in names]
    if len(present) > 1:
        raise DataError(f"{path}: holds {' and '.join(present)}; keep one")
    return present[0] if present else None


def mask_names(mask: str) -> tuple[str, ...]:
    """Return what a mask, such as ``val_mask``, may be called, or the node ids in its place."""
    words = [word for word, part in _PARTS.items() if mask == f"{part}_mask"]
    after = [f"{word}_{kind}" for word in words for kind in (*_IDS, *_MASKS)]
    return (*after, *(f"{kind}_{word}" for word in words for kind in ("idx", "mask")))


def holds_ids(name: str) -> bool:
    """Whether a split of this name is a list of node ids: ``train_idx``, not ``train_mask``."""
    return not any(word in _MASKS for word in name.split("_"))


def check_unread(names: Iterable[str], path: Path) -> str | None:
    """Return a note about the arrays that nothing read, or None where there are none.

    Raises:
        DataError: one of them looks like a split.
    """
    unread = sorted(names)
    for name in unread:
        if _LIKE_SPLIT.search(name.lower()):
            raise DataError(
                f"{path}: holds {name!r}, which is not understood, so a split would be lost; call "
                "masks train_mask, val_mask and test_mask, and node ids train_idx, val_idx and "
                f"test_idx, or leave {name} out"
            )
    return f"{path}: not understood and not used: {', '.join(unread)}" if unread else None
