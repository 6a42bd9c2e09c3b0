"""NumPy files: ``.npz`` archives of a graph or a data set, and single ``.npy`` arrays."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from maxk.core.errors import DataError
from maxk.graph.files.edges import DAMAGE, Edges, check_file, check_finite, check_room

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: What edge weights may be called.
WEIGHTS = ("edge_weight", "edge_weights", "weight", "weights", "edge_attr")
_LIKE_WEIGHTS = re.compile(r"weight|edge_?(attr|feat)")


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an ``.npz`` file, never unpickled.

    Each array's declared shape is compared with the bytes that are there before any memory is
    taken for it.

    Raises:
        DataError: the archive is cut short or damaged, or an array holds Python objects.
    """
    check_file(path)
    arrays: dict[str, NDArray[Any]] = {}
    member = ""
    try:
        with zipfile.ZipFile(path) as archive:
            # No more than an entry declares is ever unpacked of it.
            check_room(sum(i.file_size for i in archive.infolist()), f"{path}: what it unpacks to")
            for info in archive.infolist():
                member = info.filename
                name = member.removesuffix(".npy")
                if name in arrays:
                    raise DataError(f"{path}: holds two arrays called {name!r}; keep one of them")
                _check_npy_header(archive, info, f"{path}: array {name!r}")
                with archive.open(info) as stream:
                    arrays[name] = _native(np.lib.format.read_array(stream, allow_pickle=False))
    except DataError:
        raise
    except DAMAGE as error:
        what = f"array {member!r}" if member else "not a whole .npz archive"
        raise DataError(
            f"{path}: {what}: cut short or damaged "
            f"({path.stat().st_size} bytes; {error or type(error).__name__})"
        ) from error
    return arrays


def read_npy(path: Path) -> NDArray[Any]:
    """One array of an ``.npy`` file, never unpickled.

    Raises:
        DataError: the file is cut short or damaged, or holds Python objects.
    """
    check_file(path)
    try:
        with path.open("rb") as stream:
            _check_header(stream, path.stat().st_size, f"{path}: array")
            stream.seek(0)
            return _native(np.lib.format.read_array(stream, allow_pickle=False))
    except DataError:
        raise
    except DAMAGE as error:
        raise DataError(
            f"{path}: cut short or damaged ({error or type(error).__name__})"
        ) from error


def npz_edges(arrays: dict[str, NDArray[Any]], path: Path) -> Edges:
    """Take the edges out of the arrays of an ``.npz`` file; the others stay.

    Edges are ``edge_index`` [2, E]; or ``indptr`` [M + 1] and ``indices`` [E] with the sources of
    each target, as :func:`save_graph` writes them; or a csr, csc or coo matrix ``A[target,
    source]`` that :func:`scipy.sparse.save_npz` wrote. Weights are one of :data:`WEIGHTS`, [E] or
    [E, 1]; ``edge_attr`` only if it holds floating-point numbers. ``num_nodes`` (for a rectangular
    graph ``num_src``) is the node count.

    Raises:
        DataError: no edges are there, shapes and dtypes are wrong, or an array looks like weights
            or features of edges and is not understood.
    """
    if "format" in arrays and "shape" in arrays:
        edges = _scipy_edges(arrays, path)
    elif "edge_index" in arrays:
        index = _ids(arrays, "edge_index", path)
        if index.ndim != 2 or index.shape[0] != 2:
            hint = "; transpose it" if index.ndim == 2 and index.shape[1] == 2 else ""
            raise DataError(
                f"{path}: edge_index must have shape [2, E], got {list(index.shape)}{hint}"
            )
        weight = _weights(arrays, WEIGHTS, index.shape[1], path)
        count = scalar(arrays, "num_nodes", path)
        edges = Edges(torch.from_numpy(np.ascontiguousarray(index)), weight, count, count)
    elif "indptr" in arrays and "indices" in arrays:
        target, source, count = _compressed(arrays, path)
        weight = _weights(arrays, (*WEIGHTS, "data"), len(source), path)
        num_src = scalar(arrays, "num_src", path)
        nodes = scalar(arrays, "num_nodes", path)
        if nodes not in (None, count):
            raise DataError(f"{path}: num_nodes is {nodes}, but indptr has {count} rows")
        index = np.stack([source, target])
        edges = Edges(torch.from_numpy(index), weight, count if num_src is None else num_src, count)
    else:
        raise DataError(
            f"{path}: holds no edges: needs edge_index, or indptr and indices; "
            f"its arrays are {', '.join(map(repr, sorted(arrays))) or 'none'}"
        )
    for name in sorted(arrays):
        if _LIKE_WEIGHTS.search(name.lower()):
            raise DataError(
                f"{path}: holds {name!r}, which is not understood, so weights would be lost; call "
                f"one number per edge edge_weight, or leave {name} out"
            )
    return edges


def _compressed(
    arrays: dict[str, NDArray[Any]], path: Path
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Row and column of each entry of a compressed matrix, and its number of rows."""
    indptr, indices = _ids(arrays, "indptr", path), _ids(arrays, "indices", path)
    if indptr.ndim != 1 or indptr.size == 0 or indices.ndim != 1:
        raise DataError(
            f"{path}: indptr must have shape [M + 1] and indices [E], "
            f"got {list(indptr.shape)} and {list(indices.shape)}"
        )
    check_indptr(indptr, indices.size, f"{path}: indptr")
    rows = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    return rows, indices.astype(np.int64), indptr.size - 1


def _scipy_edges(arrays: dict[str, NDArray[Any]], path: Path) -> Edges:
    """Edges of a matrix as SciPy saves it, under the rules of :meth:`Graph.from_scipy`."""
    text, shape = arrays.pop("format"), arrays.pop("shape")
    arrays.pop("_is_array", None)
    layout = text.item() if text.size == 1 else b""
    layout = layout.decode("ascii", "replace") if isinstance(layout, bytes) else str(layout)
    needed = {"coo": {"row", "col"}, "csr": {"indptr", "indices"}, "csc": {"indptr", "indices"}}
    if not needed.get(layout, {""}) <= arrays.keys() or shape.size != 2 or "data" not in arrays:
        raise DataError(
            f"{path}: a matrix saved by SciPy in the format {layout!r} cannot be read; save "
            "it as csr, csc or coo"
        )
    if layout == "coo":
        target, source = _ids(arrays, "row", path), _ids(arrays, "col", path)
    else:
        target, source, _ = _compressed(arrays, path)
    if layout == "csc":
        target, source = source, target
    if target.shape != source.shape or target.ndim != 1:
        raise DataError(
            f"{path}: row and col must be equally long vectors, "
            f"got {list(target.shape)} and {list(source.shape)}"
        )
    values = arrays["data"]
    ones = values.dtype.kind in "biu" and bool((values == 1).all())
    weight = _weights(arrays, ("data",), len(source), path)
    index = torch.from_numpy(np.stack([source, target]))
    return Edges(index, None if ones else weight, int(shape[1]), int(shape[0]))


def scalar(arrays: dict[str, NDArray[Any]], name: str, path: Path) -> int | None:
    """Take a count >= 0, stored as a single number, out of the arrays; None where it is absent."""
    if name not in arrays:
        return None
    value = arrays.pop(name)
    if value.size != 1 or value.dtype.kind not in "iu" or int(value.reshape(())) < 0:
        raise DataError(
            f"{path}: {name} must be one integer >= 0, got {value.dtype} {list(value.shape)}"
            + (f" with the value {value.reshape(())}" if value.size == 1 else "")
        )
    return int(value.reshape(()))


def check_indptr(indptr: NDArray[Any], count: int, what: str) -> None:
    """Raise DataError where CSR row boundaries do not fit ``count`` entries."""
    steps = np.diff(indptr.astype(np.int64))
    if indptr[0] != 0 or indptr[-1] != count or (steps.size and steps.min() < 0):
        raise DataError(
            f"{what} must rise from 0 to the number of entries ({count}), "
            f"got {int(indptr[0])} to {int(indptr[-1])}"
            + (f" and a fall at row {int(steps.argmin())}" if (steps < 0).any() else "")
        )


def _ids(arrays: dict[str, NDArray[Any]], name: str, path: Path) -> NDArray[Any]:
    ids = arrays.pop(name)
    if ids.dtype.kind not in "iu":
        raise DataError(f"{path}: {name} must hold integers, got {ids.dtype}")
    if ids.dtype == np.uint64 and ids.size and int(ids.max()) >= 2**63:
        raise DataError(f"{path}: {name} holds {int(ids.max())}, which does not fit 64 bits")
    if ids.dtype in (np.int32, np.int64):
        return ids
    check_room(8 * ids.size, f"{path}: {name} as 64-bit ids")
    return ids.astype(np.int64)


def _weights(
    arrays: dict[str, NDArray[Any]], names: tuple[str, ...], count: int, path: Path
) -> Tensor | None:
    """Take the edge weights out of the arrays, under the one of these names that is there."""
    present = [name for name in names if name in arrays]
    if not present:
        return None
    if len(present) > 1:
        raise DataError(f"{path}: holds {' and '.join(present)}; keep one")
    (name,) = present
    values = arrays.pop(name)
    if name == "edge_attr" and values.dtype.kind in "iub" and values.shape[:1] == (count,):
        raise DataError(
            f"{path}: edge_attr must be floating-point numbers to be weights, "
            f"got {values.dtype}; call it edge_weight if it is, or leave it out"
        )
    flat = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if flat.dtype.kind not in "fiub" or flat.shape != (count,):
        hint = "; leave it out, or make edge_weight of it" if name == "edge_attr" else ""
        raise DataError(
            f"{path}: {name} must hold {count} numbers, one per edge, "
            f"got {values.dtype} {list(values.shape)}{hint}"
        )
    weight = torch.from_numpy(flat.astype(np.float32))
    check_finite(weight, f"{path}: {name}")
    return weight


def _native(array: NDArray[Any]) -> NDArray[Any]:
    """The same values in this machine's byte order, which torch asks for."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _check_npy_header(archive: zipfile.ZipFile, info: zipfile.ZipInfo, what: str) -> None:
    with archive.open(info) as stream:
        _check_header(stream, info.file_size, what)


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype as an array's header declares them."""
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
        else:
            raise ValueError(f"the unknown format version {version[0]}.{version[1]}")
    except Exception as error:
        # NumPy hands a header to Python's tokenizer and parser and then to dtype(), and damage
        # shows as nearly any exception of theirs.
        raise ValueError(f"header: {error or type(error).__name__}") from error
    return shape, dtype


def _check_header(stream: IO[bytes], size: int, what: str) -> None:
    """Raise DataError where an array's declared dtype or shape cannot be what is stored.

    Raises ValueError where the header itself cannot be read.
    """
    shape, dtype = _header(stream)
    if dtype.hasobject:
        raise DataError(
            f"{what} holds pickled Python objects, which are never loaded; "
            "save it again as numbers or text"
        )
    declared = dtype.itemsize
    for length in shape:
        declared *= length
    stored = size - stream.tell()
    # NumPy's own check takes True for a length.
    if declared != stored or any(type(n) is not int or n < 0 for n in shape):
        raise DataError(
            f"{what} declares shape {list(shape)} of {dtype} ({declared} bytes), "
            f"but holds {stored} bytes"
        )
