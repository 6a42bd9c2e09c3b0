"""A few batches of tools/fuzz.py, always the same ones; the tool itself runs for minutes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "fuzz.py"


def test_hostile_files_are_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL), "--batches", "3", "--seed", "7", "--no-record",
         "--keep", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout[done.stdout.index("{") :])
    assert report["findings"] == 0
    assert report["inputs"] == 120
    assert len(report["formats"]) == 12
