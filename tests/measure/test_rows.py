"""The one store of rows, with a row class of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from maxk.core.errors import DataError
from maxk.measure.rows import append, from_json, latest, read, to_json, write, write_csv


@dataclass(frozen=True)
class Reading:
    place: str
    kind: Literal["warm", "cold"]
    value: float | None = None
    count: int = 0

    def check(self) -> str | None:
        return "count must not be negative" if self.count < 0 else None


ONE, TWO = Reading("a", "warm", 0.5), Reading("b", "cold", None, 3)


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    append(path, [ONE])
    append(path, [TWO])
    assert list(read(path, Reading)) == [ONE, TWO]
    write(path, [TWO])
    assert list(read(path, Reading)) == [TWO]
    write_csv(tmp_path / "rows.csv", Reading, [ONE, TWO])
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert lines == ["place,kind,value,count", "a,warm,0.5,0", "b,cold,,3"]


def test_a_line_cut_short_at_any_byte_is_no_row_and_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write(path, [ONE, TWO])
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole) + 1):
        path.write_bytes(whole[:end])
        complete = end >= len(whole) - 1  # the last byte is the end of the line
        assert list(read(path, Reading)) == ([ONE, TWO] if complete else [ONE])
        append(path, [TWO])
        assert list(read(path, Reading)) == ([ONE, TWO, TWO] if complete else [ONE, TWO])


def test_a_last_line_that_is_no_object_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(to_json(ONE) + "\nhello")
    with pytest.raises(DataError, match=r"rows\.jsonl:2: not a JSON object"):
        list(read(path, Reading))


def test_a_missing_file_is_refused_unless_it_may_be_missing(tmp_path: Path) -> None:
    assert list(read(tmp_path / "none", Reading, missing_ok=True)) == []
    with pytest.raises(DataError, match="cannot be read"):
        list(read(tmp_path / "none", Reading))
    with pytest.raises(DataError, match="cannot be read"):
        list(read(tmp_path, Reading, missing_ok=True))


@pytest.mark.parametrize(("text", "message"), [
    ('{"kind": "warm"}', "the row lacks place"),
    ('{"place": "a", "kind": "hot"}', "kind must be 'warm' or 'cold', got 'hot'"),
    ('{"place": "a", "kind": "warm", "value": "1"}', "value must be a number or null, got '1'"),
    ('{"place": "a", "kind": "warm", "value": true}', "value must be a number or null, got True"),
    ('{"place": "a", "kind": "warm", "count": 1.0}', "count must be an integer, got 1.0"),
    ('{"place": "a", "kind": "warm", "size": 1}', "the row has unknown fields size"),
    ('{"place": "a", "kind": "warm", "count": -1}', "count must not be negative"),
])  # fmt: skip
def test_a_field_of_the_wrong_kind_is_named(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_json(Reading, text)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for put in (append, write):
        with pytest.raises(DataError, match=r"cannot write .*choose another folder with --out"):
            put(tmp_path / "file" / "rows.jsonl", [ONE])


def test_the_latest_row_of_each_key_is_kept_in_order() -> None:
    rows = [Reading("a", "warm", 2.0), TWO, Reading("a", "warm", 1.0)]
    assert latest(rows, lambda row: row.place) == [rows[2], TWO]
    assert latest(rows, lambda row: row.place, lambda row: row.value) == [rows[0], TWO]
