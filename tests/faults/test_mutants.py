"""The list of deliberate faults fits the sources; tools/mutate.py runs it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = tomllib.loads((ROOT / "tools" / "mutants.toml").read_text())["mutant"]


def test_names_are_distinct() -> None:
    assert len({row["name"] for row in MUTANTS}) == len(MUTANTS) >= 30


@pytest.mark.parametrize(
    "row", [row for row in MUTANTS if not row.get("gpu")], ids=lambda row: row["name"]
)
def test_a_fault_changes_one_place_and_names_its_tests(row: dict[str, object]) -> None:
    text = (ROOT / "src" / "maxk" / str(row["file"])).read_text()
    assert text.count(str(row["old"])) == 1
    changed = text.replace(str(row["old"]), str(row["new"]))
    compile(changed, str(row["file"]), "exec")
    tests = row["tests"]
    assert isinstance(tests, list)
    assert tests
    for test in tests:
        file, _, function = test.partition("::")
        assert f"def {function}" in (ROOT / "tests" / file).read_text()
