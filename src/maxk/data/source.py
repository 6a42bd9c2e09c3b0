"""What a name or path gives before anything is checked: edges and named arrays."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from maxk.core.errors import DataError
from maxk.data.dataset import MASKS
from maxk.data.features import sparse_tensor
from maxk.data.names import FEATURES, LABELS, check_unread, mask_names, pick
from maxk.graph.files import (
    TEXT_SUFFIXES,
    Edges,
    check_indptr,
    graph_kind,
    npz_edges,
    numbered_columns,
    read_edges,
    read_npy,
    read_npz,
    read_table,
    scalar,
    text_kind,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from maxk.data.dataset import Evaluator

SIDE_FILES = {"x": "features", "y": "labels", **{mask: mask for mask in MASKS}}
SIDE_SUFFIXES = (".npy", *TEXT_SUFFIXES, *(f"{suffix}.gz" for suffix in TEXT_SUFFIXES))


@dataclass
class Source:
    """Raw material of a data set.

    Attributes:
        name: The data set's name.
        origin: What an error message names: a path, or the name.
        edges: Edges as stored.
        x: features, a dense array or a torch.sparse_csr tensor, or None.
        y: labels, or None.
        masks: ``train_mask``, ``val_mask``, ``test_mask`` as far as given.
        num_classes: The class count where the source says it.
        metric: The metric where the source names one.
        where: The files of ``x``, ``y`` and the masks that come from files of their own.
        names: What ``x``, ``y`` and the masks are called in the file.
        text: The edge list whose lines an error may name, or None.
        evaluator: The source's own scorer of logits and labels, or None.
        stored_once: Whether the source says that it holds one direction of undirected edges.
        notes: Remarks for the user.
        counted: Parts from text whose first row is 0, 1, 2, ...: perhaps a header that numbers the
            columns.
    """

    name: str
    origin: str
    edges: Edges
    x: NDArray[Any] | Tensor | None = None
    y: NDArray[Any] | None = None
    masks: dict[str, NDArray[Any]] = field(default_factory=dict)
    num_classes: int | None = None
    metric: str | None = None
    where: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    text: Path | None = None
    evaluator: Evaluator | None = None
    stored_once: bool = False
    notes: list[str] = field(default_factory=list)
    counted: list[str] = field(default_factory=list)

    def called(self, part: str) -> str:
        """How a message calls ``x``, ``y`` or a mask."""
        return self.where.get(part) or self.names.get(part, part)


def read_source(
    path: Path, features: str | Path | None = None, labels: str | Path | None = None
) -> Source:
    """Read a data set from a file and the files next to it.

    A ``.npz`` holds everything: edges as in :func:`maxk.graph.files.npz_edges`, features ``x``,
    labels ``y``, and ``train_mask``, ``val_mask``, ``test_mask``, bool [N] or [N, S]; the names of
    PyG, OGB and DGL for them (:mod:`maxk.data.names`) do as well, also node ids as ``train_idx``.
    Next to an edge list or MatrixMarket file ``NAME.txt`` are
    ``NAME.features.npy``, ``NAME.labels.npy`` and, if there is a split, ``NAME.train_mask.npy``,
    ``NAME.val_mask.npy``, ``NAME.test_mask.npy``; ``.csv``, ``.tsv`` and ``.txt`` (also gzipped)
    do as well, one row per node in the order of the ids; a column of ids needs a header that says
    so, see :func:`maxk.graph.files.read_table`.

    Args:
        path: The graph or data set file.
        features: File to read features from, instead of the one next to the graph.
        labels: File to read labels from, instead of the one next to the graph.

    Raises:
        DataError: a file is missing, broken or ambiguous.
    """
    if graph_kind(path) == ".npz":
        source = _from_npz(path)
    else:
        source = Source(_stem(path), str(path), read_edges(path))
        source.text = path if graph_kind(path) in TEXT_SUFFIXES else None
        source.notes += source.edges.notes
        for part, word in SIDE_FILES.items():
            side_file = _side_file(path, word)
            if side_file is not None:
                _take(source, part, side_file)
    replace_parts(source, features, labels)
    return source


def replace_parts(source: Source, features: str | Path | None, labels: str | Path | None) -> None:
    """Read features or labels from files of their own, instead of those that a source holds.

    Raises:
        DataError: a file is missing or broken.
    """
    for part, given in (("x", features), ("y", labels)):
        if given is not None:
            _take(source, part, Path(given))
    if labels is not None:
        # The source's scorer knows its own labels only.
        source.evaluator = None


def _from_npz(path: Path) -> Source:
    arrays = read_npz(path)
    source = Source(path.stem, str(path), npz_edges(arrays, path))
    for part, known in (("x", FEATURES), ("y", LABELS), *((m, mask_names(m)) for m in MASKS)):
        name = pick(arrays, known, path)
        if name is not None:
            source.names[part] = name
    source.x = _named(arrays, source, "x")
    if source.x is None:
        source.x = _sparse_features(arrays, path)
    source.y = _named(arrays, source, "y")
    source.masks = {mask: arrays.pop(source.names[mask]) for mask in MASKS if mask in source.names}
    source.num_classes = scalar(arrays, "num_classes", path)
    meta = _meta(arrays, path)
    if isinstance(meta.get("name"), str):
        source.name = meta["name"]
    metric = meta.get("metric")
    source.metric = metric if isinstance(metric, str) else None
    source.stored_once = (
        meta.get("directed") is False and meta.get("both_directions_stored") is False
    )
    note = check_unread(arrays, path)
    if note is not None:
        source.notes.append(note)
    return source


def _named(arrays: dict[str, NDArray[Any]], source: Source, part: str) -> NDArray[Any] | None:
    return arrays.pop(source.names[part]) if part in source.names else None


def _meta(arrays: dict[str, NDArray[Any]], path: Path) -> dict[str, Any]:
    if "meta" not in arrays:
        return {}
    text = arrays.pop("meta")
    try:
        if text.size != 1 or text.dtype.kind not in "US":
            raise TypeError(f"{text.dtype} {list(text.shape)}")
        value = text.reshape(()).item()
        meta = json.loads(value.removeprefix("\ufeff") if isinstance(value, str) else value)
        if not isinstance(meta, dict):
            raise TypeError(type(meta).__name__)
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: meta must be one JSON object as text ({error})") from error
    return meta


def _sparse_features(arrays: dict[str, NDArray[Any]], path: Path) -> Tensor | None:
    """Features from ``x_data``, ``x_indices``, ``x_indptr``, ``x_shape``; None where absent."""
    parts = ("x_data", "x_indices", "x_indptr", "x_shape")
    missing = [part for part in parts if part not in arrays]
    if len(missing) == len(parts):
        return None
    if missing:
        raise DataError(f"{path}: sparse features lack {', '.join(missing)}")
    data, indices, indptr, shape = (arrays.pop(part) for part in parts)
    for part, vector in zip(parts[1:], (indices, indptr, shape), strict=True):
        if vector.dtype.kind not in "iu" or vector.ndim != 1:
            raise DataError(
                f"{path}: {part} must be a vector of integers, "
                f"got {vector.dtype} {list(vector.shape)}"
            )
    if shape.size != 2 or int(shape.min()) < 0:
        raise DataError(f"{path}: x_shape must be [rows, columns], got {shape.tolist()}")
    rows, columns = int(shape[0]), int(shape[1])
    if indptr.size != rows + 1:
        raise DataError(
            f"{path}: x_indptr must have {rows + 1} entries for the {rows} rows of x_shape, "
            f"got {indptr.size}"
        )
    if data.shape != indices.shape:
        raise DataError(
            f"{path}: x_data and x_indices must be equally long, got {data.size} and {indices.size}"
        )
    check_indptr(indptr, indices.size, f"{path}: x_indptr")
    if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < columns:
        position = int(((indices < 0) | (indices >= columns)).argmax())
        raise DataError(
            f"{path}: x_indices holds the column {int(indices[position])} at position {position}, "
            f"but x_shape allows 0..{columns - 1}"
        )
    if data.dtype.kind not in "fiub":
        raise DataError(f"{path}: x_data must hold numbers, got {data.dtype}")
    return sparse_csr(indptr, indices, data, (rows, columns))


def sparse_csr(
    indptr: NDArray[Any], indices: NDArray[Any], data: NDArray[Any], shape: tuple[int, int]
) -> Tensor:
    """A float32 torch.sparse_csr matrix from checked arrays; columns sorted, repeats added up."""
    from scipy.sparse import csr_array

    matrix = csr_array((data.astype(np.float32), indices, indptr), shape=shape)
    matrix.sum_duplicates()
    crow = torch.from_numpy(matrix.indptr.astype(np.int64))
    column = torch.from_numpy(matrix.indices.astype(np.int64))
    return sparse_tensor(crow, column, torch.from_numpy(matrix.data), shape)


def _stem(path: Path) -> str:
    """File name without its suffix, ``.gz`` included."""
    name = path.name[: -len(".gz")] if path.suffix.lower() == ".gz" else path.name
    return Path(name).stem


def _side_file(path: Path, word: str) -> Path | None:
    """The one file that carries a part of the data set, or None."""
    names = [path.with_name(f"{_stem(path)}.{word}{suffix}") for suffix in SIDE_SUFFIXES]
    files = [name for name in names if name.is_file() and name != path]
    if len(files) > 1:
        raise DataError(
            f"{path}: {' and '.join(name.name for name in files)} are both next to it; "
            "keep one, or name the one to read"
        )
    return files[0] if files else None


def _take(source: Source, part: str, path: Path) -> None:
    """Read one part of a data set from its own file."""
    if part in source.counted:
        source.counted.remove(part)
    if path.suffix == ".npy":
        array = read_npy(path)
    elif text_kind(path) in TEXT_SUFFIXES:
        array = read_table(path, np.float32 if part == "x" else np.float64)
        if numbered_columns(path):
            source.counted.append(part)
        # One number per line is a vector; features stay a matrix.
        if part != "x" and array.shape[1] == 1:
            array = array[:, 0]
    else:
        raise DataError(f"{path}: expected one of {', '.join(SIDE_SUFFIXES)}, got {path.suffix!r}")
    if part == "x":
        source.x = array
    elif part == "y":
        source.y = array
    else:
        source.masks[part] = array
    source.where[part] = str(path)
