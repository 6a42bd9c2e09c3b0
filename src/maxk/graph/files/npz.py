"""NumPy files: ``.npz`` archives of a graph or a data set, and single ``.npy`` arrays."""

from __future__ import annotations

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
    """Edges among the arrays of an ``.npz`` file.

    Either ``edge_index`` [2, E] (and ``edge_weight`` [E]), or ``indptr``, ``indices`` (and
    ``weight``, ``num_src``) as :func:`save_graph` writes them. ``num_nodes`` gives the node count.

    Raises:
        DataError: neither is there, or shapes and dtypes are wrong.
    """
    if "edge_index" in arrays:
        index = _ids(arrays, "edge_index", path)
        if index.ndim != 2 or index.shape[0] != 2:
            hint = "; transpose it" if index.ndim == 2 and index.shape[1] == 2 else ""
            raise DataError(
                f"{path}: edge_index must have shape [2, E], got {list(index.shape)}{hint}"
            )
        weight = _weights(arrays, "edge_weight", index.shape[1], path)
        count = scalar(arrays, "num_nodes", path)
        return Edges(torch.from_numpy(np.ascontiguousarray(index)), weight, count, count)
    if "indptr" in arrays and "indices" in arrays:
        indptr, indices = _ids(arrays, "indptr", path), _ids(arrays, "indices", path)
        if indptr.ndim != 1 or indptr.size == 0 or indices.ndim != 1:
            raise DataError(
                f"{path}: indptr must have shape [M + 1] and indices [E], "
                f"got {list(indptr.shape)} and {list(indices.shape)}"
            )
        check_indptr(indptr, indices.size, f"{path}: indptr")
        rows = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
        weight = _weights(arrays, "weight", indices.size, path)
        num_src = scalar(arrays, "num_src", path)
        index = np.stack([indices.astype(np.int64), rows])
        return Edges(torch.from_numpy(index), weight, num_src or indptr.size - 1, indptr.size - 1)
    raise DataError(
        f"{path}: holds no edges: needs edge_index, or indptr and indices; "
        f"its arrays are {', '.join(map(repr, sorted(arrays))) or 'none'}"
    )


def scalar(arrays: dict[str, NDArray[Any]], name: str, path: Path) -> int | None:
    """A count >= 0 stored as a single number, or None where it is absent."""
    if name not in arrays:
        return None
    value = arrays[name]
    if value.size != 1 or value.dtype.kind not in "iu" or int(value.reshape(())) < 0:
        raise DataError(
            f"{path}: {name} must be one integer >= 0, got {value.dtype} {list(value.shape)}"
            + (f" with the value {value.reshape(())}" if value.size == 1 else "")
        )
    return int(value.reshape(()))


def check_indptr(indptr: NDArray[Any], count: int, what: str) -> None:
    """Raises DataError where CSR row boundaries do not fit ``count`` entries."""
    steps = np.diff(indptr.astype(np.int64))
    if indptr[0] != 0 or indptr[-1] != count or (steps.size and steps.min() < 0):
        raise DataError(
            f"{what} must rise from 0 to the number of entries ({count}), "
            f"got {int(indptr[0])} to {int(indptr[-1])}"
            + (f" and a fall at row {int(steps.argmin())}" if (steps < 0).any() else "")
        )


def _ids(arrays: dict[str, NDArray[Any]], name: str, path: Path) -> NDArray[Any]:
    ids = arrays[name]
    if ids.dtype.kind not in "iu":
        raise DataError(f"{path}: {name} must hold integers, got {ids.dtype}")
    if ids.dtype == np.uint64 and ids.size and int(ids.max()) >= 2**63:
        raise DataError(f"{path}: {name} holds {int(ids.max())}, which does not fit 64 bits")
    if ids.dtype in (np.int32, np.int64):
        return ids
    check_room(8 * ids.size, f"{path}: {name} as 64-bit ids")
    return ids.astype(np.int64)


def _weights(arrays: dict[str, NDArray[Any]], name: str, count: int, path: Path) -> Tensor | None:
    if name not in arrays:
        return None
    values = arrays[name]
    if values.dtype.kind not in "fiub" or values.shape != (count,):
        raise DataError(
            f"{path}: {name} must hold {count} numbers, one an edge, "
            f"got {values.dtype} {list(values.shape)}"
        )
    weight = torch.from_numpy(values.astype(np.float32))
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
    """Raises DataError where an array's declared dtype or shape cannot be what is stored.

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
