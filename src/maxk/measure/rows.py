"""Rows on disk: one dataclass per line of JSON, appended and read back with checks.

Any frozen dataclass of texts, numbers and dictionaries is a row. A class may say more about its
rows: ``check()`` returns what is wrong with one, or None, and ``SIGNIFICANT`` is the number of
digits to which its floats are written.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from maxk.core.errors import DataError

T = TypeVar("T")


def to_json(row: Any) -> str:
    """Returns a row as one line of JSON; every field is there, absent ones as null.

    Raises:
        ValueError: A number is not finite.
    """
    digits = getattr(row, "SIGNIFICANT", None)
    values = asdict(row)
    return json.dumps(values if digits is None else _rounded(values, digits), allow_nan=False)


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {name: _rounded(part, digits) for name, part in value.items()}
    return value


def from_json(kind: type[T], text: str, where: str = "row") -> T:
    """Returns the row that a line of JSON holds.

    Args:
        kind: Class of the row.
        text: The line.
        where: How errors name the line, as ``file:line``.

    Raises:
        DataError: The line is no JSON object, a field is missing, unknown or of the wrong type, or
            the row's own ``check`` refuses it.
    """
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not a JSON object ({error.msg} at column {error.colno})"
        ) from None
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits, or thousands of brackets.
        raise DataError(f"{where}: not a JSON object ({error})") from None
    if not isinstance(values, dict):
        raise DataError(f"{where}: not a JSON object but {type(values).__name__}")
    return from_mapping(kind, values, where)


def from_mapping(kind: type[T], values: Mapping[str, Any], where: str = "row") -> T:
    """Returns the row with these fields, checked; raises as :func:`from_json` does."""
    types, required = _fields(kind)  # type: ignore[arg-type]  # a class is hashable
    missing = sorted(required - values.keys())
    if missing:
        raise DataError(f"{where}: the row lacks {', '.join(missing)}")
    unknown = sorted(values.keys() - types.keys())
    if unknown:
        raise DataError(f"{where}: the row has unknown fields {', '.join(unknown)}")
    for name, value in values.items():
        if not any(_fits(value, allowed) for allowed in types[name]):
            allowed = " or ".join(map(_in_words, types[name]))
            raise DataError(f"{where}: {name} must be {allowed}, got {value!r}")
    row = kind(**values)
    problem = row.check() if hasattr(row, "check") else None
    if problem is not None:
        raise DataError(f"{where}: {problem}")
    return row


@cache
def _fields(kind: Hashable) -> tuple[dict[str, tuple[Any, ...]], frozenset[str]]:
    """The types that each field of a row may have, and the fields without a default."""
    members = fields(kind)  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    required = frozenset(
        f.name for f in members if f.default is MISSING and f.default_factory is MISSING
    )
    return {f.name: tuple(_options(hints[f.name])) for f in members}, required


def _options(hint: Any) -> Iterator[Any]:
    """Plain types, and the values of a Literal."""
    origin = get_origin(hint)
    if origin in (Union, UnionType, Literal):
        for part in get_args(hint):
            yield from _options(part) if origin is not Literal else (part,)
    else:
        yield origin or hint


def _fits(value: object, allowed: Any) -> bool:
    if not isinstance(allowed, type):
        return bool(value == allowed)
    if isinstance(value, bool):
        return allowed is bool
    return isinstance(value, (int, float) if allowed is float else allowed)


def _in_words(allowed: Any) -> str:
    if not isinstance(allowed, type):
        return repr(allowed)
    words = {str: "a text", int: "an integer", float: "a number", dict: "an object"}
    return words.get(allowed, "null")


def read(path: Path | str, kind: type[T], *, missing_ok: bool = False) -> Iterator[T]:
    """Yields the rows of one file.

    The start of an object in a last line without its end is what a kill leaves, and is no row.

    Args:
        path: The file.
        kind: Class of its rows.
        missing_ok: A file that does not exist has no rows.

    Raises:
        DataError: The file cannot be read, or a line is no valid row; names the file and the line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        if missing_ok and isinstance(error, FileNotFoundError):
            return
        raise DataError(f"{path}: cannot be read ({error})") from None
    *lines, last = text.split("\n")
    if not _is_cut_short(last):
        lines.append(last)
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield from_json(kind, line, f"{path}:{number}")


def _is_cut_short(line: str) -> bool:
    """Whether a line without its end is the beginning of an object."""
    if not line.startswith("{"):
        return False
    try:
        json.loads(line)
    except ValueError:
        return True
    except RecursionError:
        return False  # nested too deeply for a row: reading it raises the error
    return False


def append(path: Path, rows: Iterable[Any]) -> None:
    """Appends rows to a file, which is made if needed; a line that a kill cut short is removed.

    Raises:
        DataError: The file cannot be written.
    """
    lines = "".join(to_json(row) + "\n" for row in rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(max(size - 1, 0))
            if size and file.read(1) != b"\n":
                file.seek(0)
                whole = file.read()
                start = whole.rfind(b"\n") + 1
                if _is_cut_short(whole[start:].decode(errors="replace")):
                    file.truncate(start)
                else:
                    lines = "\n" + lines
            file.seek(0, io.SEEK_END)
            file.write(lines.encode())
    except OSError as error:
        raise _unwritable(path, error) from error


def write(path: Path, rows: Iterable[Any]) -> None:
    """Writes a file of these rows alone.

    Raises:
        DataError: The file cannot be written.
    """
    _write_text(path, "".join(to_json(row) + "\n" for row in rows))


def write_csv(path: Path, kind: Any, rows: Iterable[Any]) -> None:
    """Writes rows of one class as a table, one per line; the first line names the fields.

    Raises:
        DataError: The file cannot be written.
    """
    _write_text(path, to_csv(map(asdict, rows), [f.name for f in fields(kind)]))


def to_csv(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Returns a table of the named fields; one that a row does not have is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _write_text(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> DataError:
    return DataError(f"cannot write {path}: {error.strerror}; choose another folder with --out")


def latest(
    rows: Iterable[T],
    key: Callable[[T], Hashable],
    when: Callable[[T], Any] = lambda row: 0,
) -> list[T]:
    """Returns the latest row of each key, in the order in which the keys first appear.

    Args:
        rows: In the order in which they were written.
        key: What makes two rows the same measurement.
        when: Time of a row; of equal ones the later in ``rows`` wins.
    """
    kept: dict[Hashable, T] = {}
    for row in rows:
        name = key(row)
        if name not in kept or when(row) >= when(kept[name]):
            kept[name] = row
    return list(kept.values())
