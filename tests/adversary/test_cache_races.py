"""Processes that compile for one cache at the same time, and entries that are broken or foreign."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# One process's saves, in the order that mixes up the numbered entries behind an index: A and B both
# find no entry, A then B names its own, B then A writes its code.
CODE = """
import os, sys, time
from pathlib import Path
import torch, maxk

role, dtype, place = sys.argv[1], getattr(torch, sys.argv[2]), Path(sys.argv[3])
rename, count = os.replace, 0

def wait(name):
    end = time.monotonic() + 120
    while not (place / name).exists():
        assert time.monotonic() < end, f"{role} waited for {name}"
        time.sleep(0.01)

def replace(source, target, **words):
    global count
    if "sum_rows" not in str(target):
        return rename(source, target, **words)
    count += 1
    if role == "A":
        wait("B asks" if count == 1 else "B ended")
    elif role == "B" and count == 1:
        (place / "B asks").touch()
        wait("A named")
    rename(source, target, **words)
    if role == "A":
        (place / "A named").touch()

os.replace = replace
x = torch.tensor([[1.0], [2.0], [3.0]], dtype=dtype)
graph = maxk.Graph.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 0]]), 3)
print(maxk.aggregate(graph, x, "mean").flatten().tolist())
if role == "B":
    (place / "B ended").touch()
"""


def start(role: str, dtype: str, place: Path) -> subprocess.Popen[str]:
    cache = str(place / "cache")
    return subprocess.Popen(
        [sys.executable, "-c", CODE, role, dtype, str(place)], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "MAXK_CACHE_DIR": cache, "NUMBA_CACHE_DIR": cache},
    )  # fmt: skip


def result(process: subprocess.Popen[str]) -> list[float]:
    out, error = process.communicate(timeout=180)
    assert process.returncode == 0, error
    return [float(word) for word in out.strip("[]\n").split(",")]


def test_two_signatures_compiled_at_once_stay_apart(tmp_path: Path) -> None:
    together = [start("A", "float32", tmp_path), start("B", "float64", tmp_path)]
    assert [result(each) for each in together] == [[3, 1, 2]] * 2
    for dtype in ("float32", "float64"):
        assert result(start("later", dtype, tmp_path)) == [3, 1, 2]


COMPILED = """
import torch, maxk
from maxk.device.compiling import compile_seconds
assert maxk.maxk(torch.tensor([[1.0, 3, 2]]), 1).columns.tolist() == [[1]]
print("compiled" if compile_seconds() else "loaded")
"""


def compiled(cache: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=180, check=False,
        env={**os.environ, "MAXK_CACHE_DIR": str(cache), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one process that selects leaves in an empty cache."""
    cache = tmp_path_factory.mktemp("cache")
    assert compiled(cache) == "compiled"
    assert compiled(cache) == "loaded"
    return {path.name: path.read_bytes() for path in (cache / "cpu").iterdir()}


@pytest.mark.parametrize("damage", ["cut", "one bit", "empty", "exchanged", "another's text"])
def test_a_damaged_or_foreign_entry_is_compiled_again(
    tmp_path: Path, entries: dict[str, bytes], damage: str
) -> None:
    folder = tmp_path / "cpu"
    folder.mkdir()
    names = sorted(entries)
    for name, other in zip(names, names[1:] + names[:1], strict=True):
        data = entries[name]
        bad = {
            "cut": data[: len(data) // 2],
            "one bit": data[:-9] + bytes([data[-9] ^ 4]) + data[-8:],
            "empty": b"",
            "exchanged": entries[other],
            "another's text": data.replace(b"numba: ", b"numba: 9", 1),
        }
        (folder / name).write_bytes(bad[damage])
    assert compiled(tmp_path) == "compiled"
    assert compiled(tmp_path) == "loaded"
    assert {path.name for path in folder.iterdir()} == set(entries)


def test_an_entry_of_another_cpu_is_not_used(tmp_path: Path, entries: dict[str, bytes]) -> None:
    (tmp_path / "cpu").mkdir()
    for name, data in entries.items():
        (tmp_path / "cpu" / name).write_bytes(data)
    assert compiled(tmp_path, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="") == "compiled"
    assert compiled(tmp_path) == "loaded"
