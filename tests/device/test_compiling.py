"""Compilation is shown as such and counts as nobody's run time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from maxk.device import compiling

LINE = "compiling kernels, once"


def test_the_clock_stands_still_while_kernels_are_compiled() -> None:
    wall, start = time.perf_counter(), compiling.run_clock()
    compiled = compiling.compile_seconds()
    with compiling.compiling():
        inside = compiling.run_clock()
        with compiling.compiling():  # a kernel compiles what it calls
            time.sleep(0.05)
        assert compiling.run_clock() == inside
        assert compiling.compile_seconds() - compiled >= 0.05
    took = compiling.compile_seconds() - compiled
    ran = compiling.run_clock() - start
    assert ran >= 0
    assert took + ran <= time.perf_counter() - wall


def test_a_failed_compilation_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="refused"), compiling.compiling():
        raise ValueError("refused")
    before = compiling.compile_seconds()
    time.sleep(0.01)
    assert compiling.compile_seconds() == before


def test_a_run_says_that_it_compiles_and_does_not_call_it_an_epoch(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "maxk", "train", "--dataset", "digits", "--epochs", "3", "--hidden",
        "32", "--k", "4", "--device", "cpu", "--out",
    ]  # fmt: skip
    environment = {**os.environ, "MAXK_CACHE_DIR": str(tmp_path / "cache")}
    lines = []
    for out in ("first", "second"):
        done = subprocess.run(
            [*command, str(tmp_path / out)], env=environment, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        lines.append(done.stderr.splitlines().count(LINE))
    assert lines == [1, 0]
    text = (tmp_path / "first" / "epochs.jsonl").read_text().splitlines()
    epochs = [json.loads(line) for line in text]
    # Compiling takes about 20 seconds, loading and the first matrix products a part of one.
    assert epochs[0]["seconds"] < 3
    assert epochs[0]["seconds_aggregate"] < 3
