"""Edge lists and tables of numbers as text, gzipped or not."""

from __future__ import annotations

import codecs
import gzip
import re
import warnings
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from maxk.core.errors import DataError
from maxk.graph.files.edges import Edges, check_file, check_room
from maxk.graph.files.header import (
    NODE_NAMES,
    Role,
    edge_roles,
    is_edge_header,
    is_header,
    is_number,
    plain,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from maxk.graph.graph import Graph

TEXT_SUFFIXES = (".txt", ".csv", ".tsv")

WRITTEN_LINES = 1 << 16

#: Characters of a line. A gzipped megabyte may hold a line of a gigabyte.
LONGEST_LINE = 1 << 26
#: Lines after which the numbers so far are compared with the free memory.
ROOM_LINES = 1 << 18

_INTEGER = re.compile(r"[+-]?\d+")
#: What a field of a line must be.
Kind = Literal["id", "number", "any"]
_KINDS: dict[Role, Kind] = {"source": "id", "target": "id", "weight": "number", "row": "any"}
_FIELDS: dict[Role, str] = {"source": "i8", "target": "i8", "weight": "f8", "row": "U1"}


def text_kind(path: Path) -> str:
    """Last suffix in lower case, with ``.gz`` removed."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


@dataclass(frozen=True)
class _Layout:
    """Where the numbers of a text file start, what separates them, and what the header names.

    Attributes:
        skip: Lines before the first line of numbers.
        delimiter: Between fields; None for any blanks.
        columns: Fields of a line.
        names: The columns' names, or None without a header.
        header: Line of the header, from 1; 0 without one.
        trailing: Whether a delimiter also ends the lines.
        quoted: Whether fields are quoted.
        counted: Whether the first line of numbers is 0, 1, 2, ..., as pandas numbers columns.
    """

    skip: int
    delimiter: str | None
    columns: int
    names: tuple[str, ...] | None
    header: int
    trailing: bool
    quoted: bool
    counted: bool

    @property
    def unclean(self) -> bool:
        """Whether NumPy needs the lines without quotes and closing delimiters."""
        return self.trailing or self.quoted

    def clean(self, line: str) -> str:
        """Return a line without its comment, quotes and closing delimiter."""
        content = line.split("#", 1)[0].replace('"', "").rstrip()
        return content.removesuffix(self.delimiter or "") if self.trailing else content


def read_edge_list(path: Path) -> Edges:
    """Edges of a text file with ``source target [weight]`` on each line.

    Fields are separated by semicolons, commas, tabs or blanks. Blank lines and what follows ``#``
    are skipped. The first line may be a header, whose names then say which column is which, in any
    case and order: source (src, from, u, node1), target (dst, to, v, node2), weight (w). Columns
    called id, index or nothing, as pandas and R write them, number the rows and are not read. The
    last comment above the edges is a header too where it names both ends, and holds nothing
    else.

    Raises:
        DataError: names ``file:line`` of the first line that is no edge, or of a header that names
            another column, or not both ends.
    """
    layout = _layout(path)
    if layout is None:
        return Edges(torch.empty(2, 0, dtype=torch.int64, device="cpu"))
    roles, notes = _roles(path, layout)
    if roles == ("source", "target"):
        table = _parse(path, layout, np.int64, ("id", "id"))
        return Edges(torch.from_numpy(np.ascontiguousarray(table.T)), notes=notes)
    fields: list[tuple[str, str]] = [
        (str(role) if role != "row" else f"row {i}", _FIELDS[role]) for i, role in enumerate(roles)
    ]
    table = _parse(path, layout, fields, tuple(_KINDS[role] for role in roles))
    edge_index = torch.from_numpy(np.stack([table["source"], table["target"]]))
    if "weight" not in roles:
        return Edges(edge_index, notes=notes)
    weight = torch.from_numpy(table["weight"].astype(np.float32))
    if not bool(weight.isfinite().all()):
        row = int((~weight.isfinite()).nonzero()[0])
        raise DataError(
            f"{path}:{line_of(path, row)}: the weight must be a finite float32 number, "
            f"got {table['weight'][row]}"
        )
    return Edges(edge_index, weight, notes=notes)


def _roles(path: Path, layout: _Layout) -> tuple[tuple[Role, ...], tuple[str, ...]]:
    """What each column of an edge list holds, and what to tell the user about it."""
    positions: tuple[Role, ...] = ("source", "target", "weight")
    names, columns = layout.names, layout.columns
    if names is not None and not all(map(str.isdecimal, names[1:])):
        roles = edge_roles(names, f"{path}:{layout.header}")
        unread = [name for name, role in zip(names, roles, strict=True) if name and role == "row"]
        return roles, tuple(f"{path}: the column {name!r} is not read" for name in unread)
    numbered: tuple[Role, ...] = () if names is None else ("row",)
    ends = columns - len(numbered)
    if ends not in (2, 3):
        raise DataError(
            f"{path}:{layout.skip + 1}: an edge has 2 or 3 fields (source, target, weight), "
            f"got {columns}"
        )
    notes: tuple[str, ...] = ()
    if layout.counted and layout.delimiter and not numbered:
        line = layout.delimiter.join(map(str, range(columns)))
        notes = (
            f"{path}:{layout.skip + 1}: the line {line} is read as an edge; if it is a header that "
            "numbers the columns, as pandas writes it, delete it",
        )
    return numbered + positions[:ends], notes


def read_table(path: Path, dtype: type[np.floating[Any]] = np.float64) -> NDArray[Any]:
    """Numbers of a text file, one row per line, as a matrix [rows, columns].

    Delimiters, comments and header as in :func:`read_edge_list`; ``nan`` is a number. A column that
    the header calls id, index, node or nothing numbers the rows: it must count from 0 (a column
    without a name, as R writes it, also from 1), and is left out.

    Raises:
        DataError: names ``file:line`` of the first line that holds a word, another number of
            fields, or a row number out of order.
    """
    layout = _layout(path)
    if layout is None:
        return np.empty((0, 0), dtype)
    kind: Kind = "number"
    table = _parse(path, layout, dtype, (kind,) * layout.columns)
    names = layout.names or ()
    ids = [i for i, name in enumerate(names) if plain(name) in NODE_NAMES]
    if not ids or len(ids) == layout.columns:
        return table
    for column in ids:
        numbers = table[:, column]
        first = 1 if names[column] == "" and numbers[0] == 1 else 0
        wrong = numbers != np.arange(first, len(numbers) + first)
        if wrong.any():
            row = int(wrong.argmax())
            raise DataError(
                f"{path}:{line_of(path, row)}: the column {names[column]!r} numbers the nodes, so "
                f"row {row} must hold {row + first}, got {numbers[row]:.17g}; sort the rows by "
                "node id, with ids from 0"
            )
    return np.delete(table, ids, axis=1)


def numbered_columns(path: Path) -> bool:
    """Whether a file without a header begins with 0, 1, 2, ..., as pandas numbers columns."""
    layout = _layout(path)
    return layout is not None and layout.names is None and layout.counted


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
    """Open a text file, gzipped or not; damage on the way is a DataError."""
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
        if error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise DataError(f"{path} is UTF-16 text; save it as UTF-8") from error
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
    content = line.split("#", 1)[0].replace('"', "").strip()
    return [field.strip() for field in content.split(delimiter)]


def _names(line: str, delimiter: str | None) -> list[str]:
    """Fields of a header, where a tab in front of the first name leaves a blank one."""
    line = line.replace('"', "").rstrip()
    if delimiter is None and "\t" in line:
        delimiter = "\t"
    return [name.strip() for name in line.split(delimiter)]


def _delimiter(content: str) -> str | None:
    return next((mark for mark in ";," if mark in content), None)


def _layout(path: Path) -> _Layout | None:
    """Find the first line of numbers; None where the file holds none."""
    names: list[str] | None = None
    header = 0
    comment: tuple[int, str] = (0, "")
    with _open_text(path) as stream:
        for skip, line in enumerate(_lines(path, stream)):
            content = line.split("#", 1)[0].strip()
            if not content or content.startswith("%"):
                if line.strip():
                    comment = (skip + 1, line.strip().lstrip("#% "))
                continue
            delimiter = _delimiter(content)
            fields = _fields(line, delimiter)
            if names is None and is_header(_names(line.split("#", 1)[0], delimiter)):
                names, header = _names(line.split("#", 1)[0], delimiter), skip + 1
                continue
            comment_names = _names(comment[1], _delimiter(comment[1]))
            if (
                names is None
                and len(comment_names) == len(fields)
                and is_edge_header(comment_names)
            ):
                header, names = comment[0], comment_names
            # A closing delimiter in the header alone is a last column without a name.
            trailing = delimiter is not None and fields[-1] == ""
            if names is not None and trailing:
                names = names[:-1] if names[-1] == "" else names
                trailing = len(names) == len(fields) - 1
            columns = len(fields) - trailing
            if names is not None and len(names) != columns:
                raise DataError(
                    f"{path}:{skip + 1}: the header in line {header} names {len(names)} columns "
                    f"({', '.join(map(repr, names))}), but this line has {columns} fields; name "
                    "each column once"
                )
            named = None if names is None else tuple(names)
            counted = fields[:columns] == [str(i) for i in range(columns)]
            quoted = '"' in content
            return _Layout(skip, delimiter, columns, named, header, trailing, quoted, counted)
    return None


def _rows(path: Path, layout: _Layout) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of each line of numbers."""
    with _open_text(path) as stream:
        for number, line in enumerate(_lines(path, stream), start=1):
            if number <= layout.skip or not line.split("#", 1)[0].strip():
                continue
            kept = layout.clean(line) if layout.unclean else line
            yield number, [field.strip() for field in _split(kept, layout.delimiter)]


def _split(line: str, delimiter: str | None) -> list[str]:
    return line.split("#", 1)[0].strip().split(delimiter)


def _parse(path: Path, layout: _Layout, dtype: Any, kinds: tuple[Kind, ...]) -> NDArray[Any]:
    """Parse the numbers with NumPy's C reader; a second, slow pass finds the line of a fault."""
    structured = np.dtype(dtype).names is not None
    row_bytes = np.dtype(dtype).itemsize * (1 if structured else layout.columns)
    with _open_text(path) as stream, warnings.catch_warnings():
        # Old releases of numpy read "1.0" as an id, and only warn.
        warnings.simplefilter("error", DeprecationWarning)
        lines = _lines(path, stream, row_bytes)
        try:
            return np.loadtxt(
                map(layout.clean, lines) if layout.unclean else lines,
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
        problem = _problem(fields, layout.columns, kinds)
        if problem:
            raise DataError(f"{path}:{line}: {problem}") from fault
    raise DataError(f"{path}: {fault}") from fault


def _problem(fields: list[str], columns: int, kinds: tuple[Kind, ...]) -> str | None:
    """What is wrong with one line of numbers, or None."""
    if len(fields) != columns:
        return f"expected {columns} fields as in the first line, got {len(fields)}"
    for position, (field, kind) in enumerate(zip(fields, kinds, strict=True), start=1):
        if kind == "id" and not _INTEGER.fullmatch(field):
            return f"expected an integer node id in field {position}, got {field!r}"
        if kind == "id" and not _fits(field):
            shown = field if len(field) <= 40 else f"{field[:20]}... ({len(field)} characters)"
            return f"the node id in field {position} does not fit 64 bits: {shown}"
        if kind == "number" and not is_number(field):
            return f"expected a number in field {position}, got {field!r}"
    return None


def _fits(integer: str) -> bool:
    """Whether an id fits 64 bits."""
    digits = integer.lstrip("+-").lstrip("0")
    # Python refuses to read more than 4300 digits at all.
    return len(digits) <= 19 and int(digits or "0") < 2**63 + integer.startswith("-")


def write_edge_list(graph: Graph, stream: IO[bytes], delimiter: str) -> None:
    """Write one edge a line under a header, in CSR order."""
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
