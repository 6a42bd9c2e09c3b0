"""Every row of the list of reported faults names a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split(" | ")]
    for line in (TESTS / "reported_faults.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and "---" not in line
][1:]


@pytest.mark.parametrize("row", ROWS, ids=[row[-1] for row in ROWS])
def test_a_reported_fault_is_held_by_a_test(row: list[str]) -> None:
    assert len(row) == 5
    assert all(row)
    found = re.fullmatch(r"`(\S+)::(\w+)`", row[-1])
    assert found is not None
    tree = ast.parse((TESTS / found[1]).read_text(encoding="utf-8"))
    assert found[2] in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_no_fault_is_listed_twice() -> None:
    tests = [row[-1] for row in ROWS]
    assert len(set(tests)) == len(tests) > 40
