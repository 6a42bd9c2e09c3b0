"""Graph files: ``.npz``, edge lists and MatrixMarket, read into edges or a Graph, and written back.

Nothing here unpickles, and nothing trusts a size that a file declares: a broken file is a
:class:`~maxk.core.errors.DataError` that names it, with the line where there is one.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from maxk.core.errors import DataError
from maxk.graph.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

TEXT_SUFFIXES = (".txt", ".csv", ".tsv")
GRAPH_SUFFIXES = (".npz", *TEXT_SUFFIXES, ".mtx")

WRITTEN_LINES = 1 << 16

_INTEGER = re.compile(r"[+-]?\d+")
_EDGE_FIELDS = np.dtype([("source", "i8"), ("target", "i8"), ("weight", "f8")])
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ValueError,
    OSError,
    MemoryError,
    NotImplementedError,
    RuntimeError,
)


@dataclass(frozen=True)
class Edges:
    """Edges as a file holds them, ids not yet compared with a node count.

    Attributes:
        edge_index: integer [2, E], sources in row 0, targets in row 1.
        weight: float32 [E], or None.
        num_src: number of source nodes where the file says it.
        num_dst: number of target nodes where the file says it.
    """

    edge_index: Tensor
    weight: Tensor | None = None
    num_src: int | None = None
    num_dst: int | None = None


def load_graph(path: str | Path) -> Graph:
    """Reads a graph file.

    Args:
        path: ``.npz`` (``edge_index`` or ``indptr`` and ``indices``), an edge list (``.txt``,
            ``.csv``, ``.tsv``) or MatrixMarket (``.mtx``); the text formats also gzipped (``.gz``).

    Returns:
        The graph, its edges as stored. An edge list has one node more than its largest id.

    Raises:
        DataError: the file is missing, broken, or of another kind.

    Example:
        >>> import tempfile, torch
        >>> from maxk.graph.files import load_graph, save_graph
        >>> graph = Graph.from_edge_index(torch.tensor([[0, 1], [1, 2]]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_graph(graph, folder + "/path.txt")
        ...     load_graph(folder + "/path.txt")
        Graph(num_src=3, num_dst=3, num_edges=2, device=cpu)
    """
    path = Path(path)
    edges = read_edges(path)
    reach = int(edges.edge_index.max()) + 1 if edges.edge_index.numel() else 0
    counts = (
        reach if edges.num_src is None else edges.num_src,
        reach if edges.num_dst is None else edges.num_dst,
    )
    try:
        return Graph.from_edge_index(edges.edge_index, counts, edges.weight)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error
    except (MemoryError, RuntimeError) as error:
        raise DataError(
            f"{path}: a graph of {counts[0]} x {counts[1]} nodes does not fit in memory"
        ) from error


def save_graph(graph: Graph, path: str | Path) -> None:
    """Writes a graph; the file appears whole or not at all.

    Args:
        graph: any graph. An edge list cannot say how many nodes there are, so isolated nodes with
            the largest ids are lost in it; ``.npz`` and ``.mtx`` keep everything.
        path: as in :func:`load_graph`. Edges are written in CSR order. In ``.mtx`` rows are
            targets, as in :meth:`Graph.from_scipy`.

    Raises:
        DataError: the suffix is unknown, or the file cannot be written.
    """
    path = Path(path)
    kind = graph_kind(path)
    with _whole_file(path) as raw:
        if kind == ".npz":
            arrays = {"indptr": graph.indptr, "indices": graph.indices}
            if graph.weight is not None:
                arrays["weight"] = graph.weight.detach()
            parts: dict[str, Any] = {name: value.cpu().numpy() for name, value in arrays.items()}
            np.savez_compressed(raw, num_src=np.int64(graph.num_src), **parts)
            return
        zipped = path.suffix == ".gz"
        stream: Any = gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) if zipped else raw
        if kind == ".mtx":
            _write_matrix_market(graph, stream)
        else:
            _write_edge_list(graph, stream, "," if kind == ".csv" else "\t")
        if zipped:
            stream.close()


def graph_kind(path: Path) -> str:
    """Suffix that decides how a graph file is read; ``.gz`` in front of which is seen through."""
    kind = text_kind(path)
    if kind not in GRAPH_SUFFIXES or (kind == ".npz" and path.suffix == ".gz"):
        raise DataError(
            f"{path}: unknown kind of graph file {path.suffix or path.name!r}; "
            f"known: {', '.join(GRAPH_SUFFIXES)}, and .gz of the text formats"
        )
    return kind


def text_kind(path: Path) -> str:
    """Last suffix in lower case, with ``.gz`` taken off."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def read_edges(path: Path) -> Edges:
    """Edges of any graph file; see :func:`load_graph`."""
    kind = graph_kind(path)
    if kind == ".npz":
        return npz_edges(read_npz(path), path)
    if kind == ".mtx":
        return read_matrix_market(path)
    return read_edge_list(path)


# --- text ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layout:
    """Where the numbers of a text file start and how they are parted."""

    skip: int
    delimiter: str | None
    columns: int


def read_edge_list(path: Path) -> Edges:
    """Edges of a text file with ``source target [weight]`` a line.

    Fields are parted by commas, semicolons, tabs or blanks. Blank lines and what follows ``#`` are
    skipped; the first line may be a header of words.

    Raises:
        DataError: names ``file:line`` of the first line that is no edge.
    """
    layout = _layout(path)
    if layout is None:
        return Edges(torch.empty(2, 0, dtype=torch.int64))
    if layout.columns not in (2, 3):
        raise DataError(
            f"{path}:{layout.skip + 1}: an edge has 2 or 3 fields (source, target, weight), "
            f"got {layout.columns}"
        )
    dtype: Any = np.int64 if layout.columns == 2 else _EDGE_FIELDS
    table = _parse(path, layout, dtype, ids=2)
    if layout.columns == 2:
        return Edges(torch.from_numpy(np.ascontiguousarray(table.T)))
    edge_index = torch.from_numpy(np.stack([table["source"], table["target"]]))
    weight = torch.from_numpy(table["weight"].astype(np.float32))
    if not bool(weight.isfinite().all()):
        row = int((~weight.isfinite()).nonzero()[0])
        raise DataError(
            f"{path}:{line_of(path, row)}: the weight must be a finite float32 number, "
            f"got {table['weight'][row]}"
        )
    return Edges(edge_index, weight)


def read_table(path: Path, dtype: type[np.floating[Any]] = np.float64) -> NDArray[Any]:
    """Numbers of a text file, one row a line, as a matrix [rows, columns].

    Delimiters, comments and header as in :func:`read_edge_list`; ``nan`` is a number.

    Raises:
        DataError: names ``file:line`` of the first line that holds a word or another number of
            fields.
    """
    layout = _layout(path)
    if layout is None:
        return np.empty((0, 0), dtype)
    return _parse(path, layout, dtype, ids=0)


def line_of(path: Path, row: int) -> int:
    """Line number, from 1, of a row of numbers of a text file."""
    layout = _layout(path)
    assert layout is not None
    for number, (line, _) in enumerate(_rows(path, layout)):
        if number == row:
            return line
    raise AssertionError(f"{path} has no row {row}")


@contextmanager
def _open_text(path: Path) -> Iterator[IO[str]]:
    """Opens a text file, gzipped or not; damage on the way is a DataError."""
    check_file(path)
    try:
        # A spreadsheet may put a byte order mark in front.
        if path.suffix.lower() == ".gz":
            with gzip.open(path, "rt", encoding="utf-8-sig") as stream:
                yield stream
        else:
            with path.open(encoding="utf-8-sig") as stream:
                yield stream
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not a text file ({error.reason} at byte {error.start})"
        ) from error
    except (EOFError, zlib.error, OSError) as error:
        raise DataError(f"{path}: cut short or damaged ({error})") from error


def _fields(line: str, delimiter: str | None) -> list[str]:
    return [field.strip() for field in line.split("#", 1)[0].strip().split(delimiter)]


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _layout(path: Path) -> _Layout | None:
    """Finds the first line of numbers; None where the file holds none."""
    first = True
    with _open_text(path) as stream:
        for skip, line in enumerate(stream):
            content = line.split("#", 1)[0].strip()
            if not content or content.startswith("%"):
                continue
            delimiter = next((mark for mark in ",;" if mark in content), None)
            fields = _fields(line, delimiter)
            # A header is a first line without any number.
            if first and not any(map(_is_number, fields)):
                first = False
                continue
            return _Layout(skip, delimiter, len(fields))
    return None


def _rows(path: Path, layout: _Layout) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of each line of numbers."""
    with _open_text(path) as stream:
        for number, line in enumerate(stream, start=1):
            if number > layout.skip and line.split("#", 1)[0].strip():
                yield number, _fields(line, layout.delimiter)


def _parse(path: Path, layout: _Layout, dtype: Any, *, ids: int) -> NDArray[Any]:
    """Parses the numbers with numpy's C reader; a second, slow pass finds the line of a fault."""
    structured = np.dtype(dtype).names is not None
    with _open_text(path) as stream:
        try:
            return np.loadtxt(
                stream,
                dtype=dtype,
                comments="#",
                delimiter=layout.delimiter,
                skiprows=layout.skip,
                ndmin=1 if structured else 2,
            )
        except UnicodeDecodeError:
            raise
        except (ValueError, OverflowError, MemoryError) as error:
            fault: Exception = error
    for line, fields in _rows(path, layout):
        problem = _problem(fields, layout.columns, ids)
        if problem:
            raise DataError(f"{path}:{line}: {problem}") from fault
    raise DataError(f"{path}: {fault}") from fault


def _problem(fields: list[str], columns: int, ids: int) -> str | None:
    """What is wrong with one line of numbers, or None."""
    if len(fields) != columns:
        return f"expected {columns} fields as in the first line, got {len(fields)}"
    for position, field in enumerate(fields):
        if position < ids and not _INTEGER.fullmatch(field):
            return f"expected an integer node id in field {position + 1}, got {field!r}"
        if position < ids and not -(2**63) <= int(field) < 2**63:
            return f"the node id in field {position + 1} does not fit 64 bits: {field}"
        if position >= ids and not _is_number(field):
            return f"expected a number in field {position + 1}, got {field!r}"
    return None


def _write_edge_list(graph: Graph, stream: IO[bytes], delimiter: str) -> None:
    columns = list(graph.edge_index().cpu())
    names, formats = ["source", "target"], ["%d", "%d"]
    if graph.weight is not None:
        columns.append(graph.weight.detach().cpu().double())
        names.append("weight")
        formats.append("%.9g")
    stream.write(f"{delimiter.join(names)}\n".encode())
    line = delimiter.join(formats) + "\n"
    # One format for many lines is several times faster than one a line.
    for parts in zip(*(column.split(WRITTEN_LINES) for column in columns), strict=True):
        rows = zip(*(part.tolist() for part in parts), strict=True)
        stream.write((line * len(parts[0]) % tuple(chain.from_iterable(rows))).encode())


# --- MatrixMarket --------------------------------------------------------------------------------


def read_matrix_market(path: Path) -> Edges:
    """Edges of a sparse MatrixMarket file: entry (i, j) is the edge j -> i, its value the weight.

    A ``pattern`` file has no weights; ``symmetric`` files give both directions.

    Raises:
        DataError: the file is no real, integer or pattern coordinate matrix, or is broken.
    """
    from scipy.io import mminfo, mmread

    check_file(path)
    try:
        kind, field = mminfo(path)[3:5]
        if kind != "coordinate" or field == "complex":
            raise DataError(
                f"{path}: a graph is a coordinate matrix of real, integer or pattern entries, "
                f"got {kind} {field}"
            )
        matrix: Any = mmread(path)
    except DataError:
        raise
    except (*_DAMAGE, OverflowError) as error:
        text = str(error) or type(error).__name__
        line = re.match(r"Line (\d+): (.*)", text)
        where = f"{path}:{line[1]}: {line[2]}" if line else f"{path}: {text}"
        raise DataError(where) from error
    index = np.stack([matrix.col, matrix.row]).astype(np.int64)
    weight = None
    if field != "pattern":
        weight = torch.from_numpy(matrix.data.astype(np.float32))
        check_finite(weight, f"{path}: entry")
    rows, columns = matrix.shape
    return Edges(torch.from_numpy(index), weight, num_src=columns, num_dst=rows)


def _write_matrix_market(graph: Graph, stream: IO[bytes]) -> None:
    from scipy.io import mmwrite
    from scipy.sparse import coo_array

    source, target = graph.edge_index().cpu().numpy()
    field = "pattern" if graph.weight is None else "real"
    data = np.ones(graph.num_edges)
    if graph.weight is not None:
        data = graph.weight.detach().cpu().double().numpy()
    matrix = coo_array((data, (target, source)), shape=(graph.num_dst, graph.num_src))
    # SciPy closes what it writes to, and writes text.
    buffer = io.BytesIO()
    mmwrite(buffer, matrix, field=field, symmetry="general", precision=9)
    stream.write(buffer.getvalue())


# --- npz -----------------------------------------------------------------------------------------


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an ``.npz`` file, never unpickled.

    Each array's declared shape is compared with the bytes that are there before any memory is
    taken for it.

    Raises:
        DataError: the archive is cut short or damaged, or an array holds Python objects.
    """
    check_file(path)
    arrays = {}
    member = ""
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                member = info.filename
                name = member.removesuffix(".npy")
                _check_npy_header(archive, info, f"{path}: array {name!r}")
                with archive.open(info) as stream:
                    arrays[name] = _native(np.lib.format.read_array(stream, allow_pickle=False))
    except DataError:
        raise
    except _DAMAGE as error:
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
    except _DAMAGE as error:
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
        f"its arrays are {', '.join(sorted(arrays)) or 'none'}"
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


def check_finite(values: Tensor, what: str) -> None:
    """Raises DataError naming the first NaN or infinity of a vector."""
    finite = values.isfinite()
    if not bool(finite.all()):
        position = int((~finite).nonzero()[0])
        raise DataError(
            f"{what} must be finite, got {float(values[position])} at position {position}"
        )


def check_file(path: Path) -> None:
    """Raises DataError where there is no file."""
    if not path.is_file():
        kind = "is a folder, not a file" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {kind}")


def _ids(arrays: dict[str, NDArray[Any]], name: str, path: Path) -> NDArray[Any]:
    ids = arrays[name]
    if ids.dtype.kind not in "iu":
        raise DataError(f"{path}: {name} must hold integers, got {ids.dtype}")
    return ids if ids.dtype in (np.int32, np.int64) else ids.astype(np.int64)


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


def _check_header(stream: IO[bytes], size: int, what: str) -> None:
    """Raises DataError where an array's declared dtype or shape cannot be what is stored."""
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        raise DataError(f"{what} has the unknown format version {version[0]}.{version[1]}")
    if dtype.hasobject:
        raise DataError(
            f"{what} holds pickled Python objects, which are never loaded; "
            "save it again as numbers or text"
        )
    declared = dtype.itemsize
    for length in shape:
        declared *= length
    stored = size - stream.tell()
    if declared != stored:
        raise DataError(
            f"{what} declares shape {list(shape)} of {dtype} ({declared} bytes), "
            f"but holds {stored} bytes"
        )


# --- writing -------------------------------------------------------------------------------------


@contextmanager
def _whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Opens a temporary file beside ``path`` and renames it when all went well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            yield stream
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error})") from error
    finally:
        temporary.unlink(missing_ok=True)
