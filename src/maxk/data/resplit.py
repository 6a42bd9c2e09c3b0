"""Another split of a data set that is loaded already."""

from __future__ import annotations

from dataclasses import replace

from maxk.core.errors import DataError
from maxk.data.dataset import Dataset
from maxk.data.labels import check_labels
from maxk.data.load import split_of
from maxk.data.source import Source


def with_split(dataset: Dataset, source: Source, *, split: int | None, seed: int) -> Dataset:
    """The same data set under another split of its source; graph and features are not made again.

    Args:
        dataset: What :func:`maxk.data.load.assemble` made of ``source``, on any device.
        source: Where its masks come from.
        split: As in :func:`maxk.data.load.load`.
        seed: As in :func:`maxk.data.load.load`.

    Raises:
        DataError: the source holds no labels, or no such split.
    """
    if source.y is None:
        raise DataError(f"{source.origin}: holds no labels, so it has no split")
    labels = check_labels(source.y, source.num_classes, source.called("y"))
    masks = split_of(source, labels, split, seed)
    device = dataset.y.device
    return replace(
        dataset,
        train_mask=masks.train.to(device),
        val_mask=masks.val.to(device),
        test_mask=masks.test.to(device),
    )
