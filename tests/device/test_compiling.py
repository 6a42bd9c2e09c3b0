"""Compilation is shown as such and counts as nobody's run time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from maxk.device import compiling


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


RUN = """
import logging, time
logging.basicConfig(level=logging.INFO, format="%(message)s")
from maxk.device.compiling import compile_seconds
from maxk.train.config import TrainConfig
from maxk.train.loop import Trainer
trainer = Trainer(TrainConfig(dataset="digits", hidden=32, k=4, device="cpu"))
start = time.perf_counter()
epoch = trainer.train_epoch()
took = time.perf_counter() - start
print(compile_seconds() > 0)
assert epoch.seconds_select + epoch.seconds_aggregate <= epoch.seconds
assert epoch.seconds + epoch.seconds_evaluate + compile_seconds() <= took
"""


def test_a_run_says_that_it_compiles_and_does_not_call_it_an_epoch(tmp_path: Path) -> None:
    for compiles in (True, False):
        done = subprocess.run(
            [sys.executable, "-c", RUN], capture_output=True, text=True, timeout=300, check=False,
            env={**os.environ, "MAXK_CACHE_DIR": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == str(compiles)
        assert done.stderr.splitlines().count("compiling kernels, once") == compiles
