"""Edge lists and tables of numbers as text, gzipped or not."""

from __future__ import annotations

import gzip
import re
import warnings
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch

from maxk.core.errors import DataError
from maxk.graph.files.edges import Edges, check_file, check_room

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from maxk.graph.graph import Graph

TEXT_SUFFIXES = (".txt", ".csv", ".tsv")

WRITTEN_LINES = 1 << 16

#: Characters of a line. A gzipped megabyte may hold a line of a gigabyte.
LONGEST_LINE = 1 << 26
#: Lines after which it is asked whether the numbers so far leave room for more.
ROOM_LINES = 1 << 18

_INTEGER = re.compile(r"[+-]?\d+")
_EDGE_FIELDS = np.dtype([("source", "i8"), ("target", "i8"), ("weight", "f8")])


def text_kind(path: Path) -> str:
    """Last suffix in lower case, with ``.gz`` taken off."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


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
    except MemoryError as error:
        raise DataError(f"{path}: does not fit in memory") from error


def _lines(path: Path, stream: IO[str], row_bytes: int = 0) -> Iterator[str]:
    """Lines of an open text file, whose length and number the file cannot choose freely."""
    number = 0
    while line := stream.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE:
            raise DataError(f"{path}:{number}: a line of {LONGEST_LINE} characters and more")
        if number % ROOM_LINES == 0:
            # The reader's table may have to double once more.
            check_room(number * row_bytes, f"{path}: a file of more than {number} lines")
        yield line


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
        for skip, line in enumerate(_lines(path, stream)):
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
        for number, line in enumerate(_lines(path, stream), start=1):
            if number > layout.skip and line.split("#", 1)[0].strip():
                yield number, _fields(line, layout.delimiter)


def _parse(path: Path, layout: _Layout, dtype: Any, *, ids: int) -> NDArray[Any]:
    """Parses the numbers with numpy's C reader; a second, slow pass finds the line of a fault."""
    structured = np.dtype(dtype).names is not None
    row_bytes = np.dtype(dtype).itemsize * (1 if structured else layout.columns)
    with _open_text(path) as stream, warnings.catch_warnings():
        # Old releases of numpy read "1.0" as an id, and only warn.
        warnings.simplefilter("error", DeprecationWarning)
        try:
            return np.loadtxt(
                _lines(path, stream, row_bytes),
                dtype=dtype,
                comments="#",
                delimiter=layout.delimiter,
                skiprows=layout.skip,
                ndmin=1 if structured else 2,
            )
        except (UnicodeDecodeError, DataError):
            raise
        except (ValueError, OverflowError, MemoryError, DeprecationWarning) as error:
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
        if position < ids and not _fits(field):
            shown = field if len(field) <= 40 else f"{field[:20]}... ({len(field)} characters)"
            return f"the node id in field {position + 1} does not fit 64 bits: {shown}"
        if position >= ids and not _is_number(field):
            return f"expected a number in field {position + 1}, got {field!r}"
    return None


def _fits(integer: str) -> bool:
    """Whether an id fits 64 bits."""
    digits = integer.lstrip("+-").lstrip("0")
    # Python refuses to read more than 4300 digits at all.
    return len(digits) <= 19 and int(digits or "0") < 2**63 + integer.startswith("-")


def write_edge_list(graph: Graph, stream: IO[bytes], delimiter: str) -> None:
    """Writes one edge a line under a header, in CSR order."""
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
