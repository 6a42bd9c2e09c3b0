"""What users set numba's own variables to: right numbers, or one sentence."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import threading, torch, maxk
torch.set_num_threads(2)
edges = torch.randint(0, 500, (2, 5000), generator=torch.Generator().manual_seed(0))
graph = maxk.Graph.from_edge_index(edges, 500).prepare("mean")
x = torch.linspace(-1, 1, 500 * 64).sin().reshape(500, 64)

def run(results):
    for _ in range(20):
        results.append(maxk.aggregate(graph, maxk.maxk(x, 8), "mean"))

with maxk.implementation("reference"):
    want = maxk.aggregate(graph, maxk.maxk(x, 8), "mean")
lists = [[] for _ in range(THREADS)]
run(lists[0])
threads = [threading.Thread(target=run, args=(each,)) for each in lists]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert [len(each) for each in lists] == [40] + [20] * (THREADS - 1)
for each in lists:
    for y in each:
        torch.testing.assert_close(y, want)
"""


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.parametrize("environment", [
    {"NUMBA_THREADING_LAYER": "workqueue"},
    {"NUMBA_THREADING_LAYER": "omp"},
    {"NUMBA_THREADING_LAYER": "threadsafe"},
    {"NUMBA_NUM_THREADS": "1"},
    {"OMP_NUM_THREADS": "1"},
], ids=lambda e: "=".join(*e.items()))  # fmt: skip
def test_several_threads_get_the_right_sums(environment: dict[str, str]) -> None:
    done = python(CODE.replace("THREADS", "4"), **{"OMP_NUM_THREADS": "2", **environment})
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]


REFUSED = """
import torch, maxk
from maxk.core.errors import MaxKError
try:
    maxk.maxk(torch.ones(3, 4), 2)
except MaxKError as error:
    print(error)
with maxk.implementation("reference"):
    assert maxk.maxk(torch.ones(3, 4), 2).columns.tolist() == [[0, 1]] * 3
"""


@pytest.mark.parametrize(("name", "value", "sentence"), [
    ("NUMBA_DISABLE_JIT", "1", "NUMBA_DISABLE_JIT is set; unset it, or run the reference"),
    ("NUMBA_THREADING_LAYER", "nosuch", "unset that variable"),
])  # fmt: skip
def test_what_cannot_work_is_one_sentence(name: str, value: str, sentence: str) -> None:
    done = python(REFUSED, **{name: value})
    assert done.returncode == 0, done.stderr
    assert sentence in done.stdout
    assert len(done.stdout.splitlines()) == 1
    command = [sys.executable, "-m", "maxk", "train", "--dataset", "digits", "--epochs", "1"]
    told = subprocess.run(
        [*command, "--quiet", "--device", "cpu"], capture_output=True, text=True, timeout=180,
        env={**os.environ, name: value}, check=False,
    )  # fmt: skip
    assert told.returncode == 2
    assert len(told.stderr.splitlines()) == 1
    assert sentence in told.stderr
