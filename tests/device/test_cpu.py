from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from maxk.device.cpu import equal_edges, equal_rows


def test_a_kernel_leaves_torchs_threads_alone() -> None:
    code = (
        "import torch, maxk; torch.set_num_threads(1); maxk.maxk(torch.randn(50, 40), 3);"
        "print(torch.get_num_threads())"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert run.stdout.strip() == "1"


@pytest.mark.parametrize("degrees", [[0, 0, 0], [5], [1000, 1, 1, 1], [3] * 500, [0] * 200 + [9]])
def test_pieces_cover_every_row_once(degrees: list[int]) -> None:
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    for bounds in (equal_edges(indptr, 7), equal_rows(len(degrees), 7)):
        assert bounds[0] == 0
        assert bounds[-1] == len(degrees)
        assert np.all(np.diff(bounds) >= 0)


def test_pieces_hold_about_equally_many_edges() -> None:
    degrees = np.random.default_rng(0).integers(0, 50, 10_000)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    edges = np.diff(indptr[equal_edges(indptr)])
    assert edges.max() < 1.05 * edges.mean()


def test_checked_kernels_refuse_an_index_outside_an_array() -> None:
    code = """
import numpy as np
from numba import prange
from maxk.device import cpu
cpu.check_bounds = True

@cpu.kernel
def write(y, at):
    for i in prange(at.shape[0]):
        y[at[i]] = 1

y = np.zeros(4)
write(y, np.array([0, 3]))
assert y.tolist() == [1, 0, 0, 1]
try:
    write(y, np.array([4]))
except IndexError:
    raise SystemExit(0)
raise SystemExit("not refused")
"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.py"
        path.write_text(code)
        run = subprocess.run(
            [sys.executable, path], capture_output=True, text=True, check=False,
            env={**os.environ, "MAXK_CACHE_DIR": folder},
        )  # fmt: skip
    assert run.returncode == 0, run.stderr
