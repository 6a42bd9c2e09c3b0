from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from maxk.core.errors import DataError
from maxk.measure.record import Row, append_results, results_path, slug
from maxk.measure.rows import from_json, read, to_json

ROW = Row(
    suite="quick", op="forward", implementation="auto", graph="ring", nodes=5, edges=10, width=8,
    dtype="float32", device="NVIDIA H200", ms=1.5, ms_low=1.25, ms_high=2.0, torch="2.13.0",
    commit="abc1234", date="2026-11-29", k=2, against="torch.sparse", ratio=4.5,
)  # fmt: skip


def test_a_row_survives_the_file(tmp_path: Path) -> None:
    other = replace(ROW, op="epoch", model="sage", layers=2, split={"select": 0.5}, against=None,
                    ratio=None)  # fmt: skip
    (path,) = append_results([ROW, other], tmp_path)
    assert path == tmp_path / "nvidia-h200" / "2026-11-29-abc1234.jsonl"
    append_results([ROW], tmp_path)
    assert list(read(path, Row)) == [ROW, other, ROW]


def test_a_line_holds_what_readers_were_promised() -> None:
    values = json.loads(to_json(ROW))
    assert "\n" not in to_json(ROW)
    promised = {
        "suite", "op", "implementation", "graph", "nodes", "edges", "width", "k", "dtype", "device",
        "ms", "ms_low", "ms_high", "against", "ratio", "gbps", "fraction", "torch", "cuda",
        "commit", "date",
    }  # fmt: skip
    assert promised <= values.keys()


def test_cpu_rows_lie_in_a_folder_of_their_processor() -> None:
    row = replace(ROW, device="cpu", machine="AMD EPYC 9B45 (2 cores)")
    assert results_path(Path("r"), row).parent.name == "cpu-amd-epyc-9b45-2-cores"
    assert slug("***") == "unknown"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ms": "fast"}, "ms must be a number, got 'fast'"),
        ({"nodes": 1.5}, "nodes must be an integer, got 1.5"),
        ({"nodes": True}, "nodes must be an integer, got True"),
        ({"k": "2"}, "k must be an integer or null, got '2'"),
        ({"op": "sideways"}, "op must be one of forward, backward, maxk, spmm, epoch"),
        ({"ms": 0}, "ms must be a positive number, got 0"),
        ({"ratio": None}, "against and ratio come together"),
        ({"speed": 1}, "unknown fields speed"),
        ({"split": [1]}, "split must be an object or null"),
    ],
)
def test_broken_rows_are_refused(change: dict[str, object], message: str) -> None:
    values = json.loads(to_json(ROW)) | change
    with pytest.raises(DataError, match=message):
        from_json(Row, json.dumps(values))


def test_errors_name_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{to_json(ROW)}\n\n{{\n")
    with pytest.raises(DataError, match=r"rows\.jsonl:3: not a JSON object"):
        list(read(path, Row))
    path.write_text('{"suite": "quick"}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl:1: the row lacks commit, date"):
        list(read(path, Row))
    with pytest.raises(DataError, match=r"none\.jsonl: cannot be read"):
        list(read(tmp_path / "none.jsonl", Row))


def test_a_number_that_is_not_finite_is_not_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        to_json(replace(ROW, gbps=float("nan")))
