from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from maxk.bench.report.compare import compare_rows
from maxk.bench.report.read import files, filter_rows, latest_rows
from maxk.bench.report.table import END, START, insert, row_tables
from maxk.cli.report import app
from maxk.core.errors import DataError
from maxk.measure.record import Row, append_results
from maxk.measure.words import digits, ratio_words

OWN = Row(
    suite="quick", op="forward", implementation="auto", graph="ring", nodes=5, edges=10, width=8,
    dtype="float32", device="NVIDIA H200", ms=2.0, ms_low=1.5, ms_high=2.5, torch="2.13.0",
    commit="abc1234", date="2026-11-29", k=2, gbps=100.0, fraction=0.5, ceiling="copy",
)  # fmt: skip
WON = replace(OWN, against="torch.sparse", ratio=4.5, ratio_low=4.0, ratio_high=5.0)
LOST = replace(OWN, against="best-dense", ratio=0.8, ratio_low=0.7, ratio_high=0.9)
EVEN = replace(OWN, against="merge-path", ratio=1.1, ratio_low=0.9, ratio_high=1.3)
THEIRS = replace(OWN, implementation="torch.sparse", ms=9.0)
run = CliRunner().invoke


def test_the_latest_row_of_each_thing_is_kept(tmp_path: Path) -> None:
    append_results([OWN, WON, replace(OWN, date="2026-11-30", ms=3.0)], tmp_path)
    rows = latest_rows([tmp_path])
    assert [(row.against, row.ms) for row in rows] == [(None, 3.0), ("torch.sparse", 2.0)]


def test_missing_results_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone: no such file or folder"):
        files([tmp_path / "gone"])
    with pytest.raises(DataError, match=r"holds no \.jsonl file"):
        files([tmp_path])


def test_scores_are_not_times(tmp_path: Path) -> None:
    for folder in ("accuracy", "approximation", "cpu"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rows.jsonl").touch()
    assert files([tmp_path]) == [tmp_path / "cpu" / "rows.jsonl"]


def test_select_keeps_what_is_asked_for() -> None:
    other = replace(OWN, op="maxk", suite="cpu", device="cpu")
    assert filter_rows([OWN, other], ops=("maxk",)) == [other]
    assert filter_rows([OWN, other], suites=("quick",)) == [OWN]
    assert filter_rows([OWN, other], device="h200") == [OWN]
    assert filter_rows([OWN, other], graphs=("none",)) == []
    wide = replace(OWN, k=192, width=512, precision="medium")
    assert filter_rows([OWN, wide], ks=(192,)) == [wide]
    assert filter_rows([OWN, wide], widths=(512,)) == [wide]
    assert filter_rows([OWN, wide], precision="medium") == [wide]


def test_a_table_shows_wins_losses_and_ties() -> None:
    text = row_tables([OWN, WON, LOST, EVEN, THEIRS])
    header, _, line = text.splitlines()[-3:]
    assert [cell.strip() for cell in header.strip("|").split("|")][3:6] == [
        "x torch.sparse", "x best-dense", "x merge-path",
    ]  # fmt: skip
    assert line == "| ring | 2 | 2.00 (1.50 to 2.50) | 4.50 | **0.80** | ~1.10 | 100 | 50% copy |"
    assert "D = 8" in text and "NVIDIA H200" in text and "commit abc1234" in text


def test_an_epoch_table_shows_the_model_and_its_memory() -> None:
    row = replace(OWN, op="epoch", model="sage", layers=3, peak_memory=3 << 29)
    assert row_tables([row]).splitlines()[-1] == (
        "| ring | sage, 3 layers | 2 | 2.00 (1.50 to 2.50) | 1.50 GiB |"
    )


def test_words_for_numbers() -> None:
    assert [digits(v) for v in (0.1234, 1.234, 12.34, 1234.5)] == ["0.123", "1.23", "12.3", "1234"]
    assert ratio_words(None) == "-"
    assert ratio_words(replace(WON, ratio=12.34)) == "12.3"


def test_a_page_is_rewritten_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"above\n{START}\nold\n{END}\nbelow\n")
    insert(page, "new")
    insert(page, "newer")
    assert page.read_text() == f"above\n{START}\n\nnewer\n\n{END}\nbelow\n"


@pytest.mark.parametrize("text", ["nothing", f"{START}", f"{END} {START}", f"{START}{START}{END}"])
def test_a_page_without_marks_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(DataError, match=r"page\.md"):
        insert(page, "new")
    assert page.read_text() == text


def test_compare_tells_better_from_worse_from_noise() -> None:
    faster = replace(OWN, ms=1.0, ms_low=0.9, ms_high=1.1)
    slower = replace(OWN, ms=4.0, ms_low=3.0, ms_high=5.0)
    nearly = replace(OWN, ms=1.9, ms_low=1.4, ms_high=2.6)
    verdicts = [compare_rows([OWN], [new])[0].outcome for new in (faster, slower, nearly)]
    assert verdicts == ["better", "worse", "not distinguishable"]
    assert compare_rows([OWN], [faster])[0].factor == 2.0


def test_compare_reads_ratios_the_other_way_round() -> None:
    more = replace(WON, ratio=9.0, ratio_low=8.0, ratio_high=10.0, ms=50.0)
    (change,) = compare_rows([WON], [more])
    assert (change.outcome, change.factor) == ("better", 2.0)
    assert compare_rows([more], [WON])[0].outcome == "worse"


def test_compare_of_different_things_is_an_error() -> None:
    with pytest.raises(DataError, match="no measurement in common"):
        compare_rows([OWN], [replace(OWN, k=4)])


def test_commands(tmp_path: Path) -> None:
    (old,) = append_results([OWN, WON], tmp_path / "old")
    (new,) = append_results([replace(OWN, ms=1.0, ms_low=0.9, ms_high=1.1), WON], tmp_path / "new")
    table = run(app, ["table", str(old)])
    assert table.exit_code == 0 and "| ring | 2 |" in table.output
    result = run(app, ["compare", str(old), str(new)])
    assert "1 better, 0 worse, 1 not distinguishable" in result.output
    page = tmp_path / "README.md"
    page.write_text(f"{START}\n{END}\n")
    assert "wrote 2 rows" in run(app, ["table", str(old), "--into", str(page)]).output
    assert "4.50" in page.read_text()
    nothing = run(app, ["table", str(old), "--op", "maxk"])
    assert isinstance(nothing.exception, DataError)


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")
def test_plot_writes_a_picture(tmp_path: Path) -> None:
    (path,) = append_results([OWN, WON, replace(WON, k=4), replace(WON, op="backward")], tmp_path)
    picture = tmp_path / "deep" / "speedup.png"
    assert run(app, ["plot", str(path), "--out", str(picture)]).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    wrong = run(app, ["plot", str(path), "--against", "nobody"])
    assert isinstance(wrong.exception, DataError)


def test_the_command_line_imports_no_torch() -> None:
    code = "import sys, maxk.cli.report, maxk.cli.bench; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
