"""A few of the killed runs of tools/kill.py, which kills fifty."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "kill.py"


def test_killed_runs_end_with_the_same_bits() -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL), "--runs", "2", "--epochs", "8", "--no-record"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["same bits"] == row["runs"] == 2
    assert row["kills in a write"] > 0
    assert row["kills by the clock"] > 0
