"""The list of deliberate faults fits the sources; tools/mutate.py runs it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = tomllib.loads((ROOT / "tools" / "mutants.toml").read_text())["mutant"]


def test_names_are_distinct() -> None:
    assert len({row["name"] for row in MUTANTS}) == len(MUTANTS) >= 30


def test_the_list_fits_the_sources() -> None:
    stale = [
        row["name"]
        for row in MUTANTS
        if (ROOT / "src" / "maxk" / row["file"]).read_text().count(row["old"]) != 1
    ]
    assert not stale, f"mend tools/mutants.toml: {', '.join(stale)}"


@pytest.mark.parametrize("row", MUTANTS, ids=lambda row: row["name"])
def test_a_fault_names_its_tests_and_changes_something(row: dict[str, object]) -> None:
    assert row["old"] != row["new"]
    assert (ROOT / "src" / "maxk" / str(row["file"])).is_file()
    tests = row["tests"]
    assert isinstance(tests, list)
    assert tests
    for test in tests:
        file, _, function = test.partition("::")
        assert f"def {function}" in (ROOT / "tests" / file).read_text()
