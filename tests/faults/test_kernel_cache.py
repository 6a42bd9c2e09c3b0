"""Several processes share the cache of compiled kernels, whatever state it is in; needs no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from faults.test_disk import as_nobody
from maxk.core.settings import settings
from maxk.device import kernel
from maxk.device.kernel import Spec, build

pytest.importorskip("cuda.bindings.nvrtc")

HOPPER = (9, 0)
TEXT = 'extern "C" __global__ void scale(float* a) { a[threadIdx.x] *= FACTOR; }\n'
BUILD = f"""
import hashlib, sys
from pathlib import Path
from maxk.device.kernel import Spec, build
for factor in range(3):
    spec = Spec(Path(sys.argv[1]), "scale", (("VALUE", 0), ("FACTOR", factor)))
    print(hashlib.sha256(build(spec, {HOPPER}).code).hexdigest())
"""


def source(folder: Path) -> Path:
    path = folder / "scale.cu"
    path.write_text(TEXT)
    return path


def together(path: Path, cache: Path) -> set[str]:
    """What three processes at once build."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", BUILD, str(path)], text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env={**os.environ, "MAXK_CACHE_DIR": str(cache)},
        )
        for _ in range(3)
    ]  # fmt: skip
    built = set()
    for child in children:
        out, error = child.communicate()
        assert child.returncode == 0, error
        built.add(out)
    return built


def test_processes_at_once_leave_whole_entries(tmp_path: Path) -> None:
    path, cache = source(tmp_path), tmp_path / "cache"
    first = together(path, cache)
    assert len(first) == 1
    entries = sorted((cache / "kernels").iterdir())
    assert len(entries) == 6
    # Every entry broken in another way: cut, altered, without a note, emptied.
    for number, entry in enumerate(entries):
        data = entry.read_bytes()
        entry.write_bytes([data[: len(data) // 2], data[:-1] + b"\xff", b""][number % 3])
    assert together(path, cache) == first
    for note in (cache / "kernels").glob("*.json"):
        assert json.loads(note.read_text())["kernel"].startswith(f"{tmp_path.name}/scale.cu")
    assert len(list((cache / "kernels").iterdir())) == 6


def test_a_read_only_cache_is_read_and_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        path, cache = source(place), place / "cache" / "kernels"
        monkeypatch.setenv("MAXK_CACHE_DIR", str(cache.parent))
        settings.cache_clear()
        kernel._read.cache_clear()
        try:
            stored = build(Spec(path, "scale", (("VALUE", 0), ("FACTOR", 2))), HOPPER)
            before = sorted(cache.iterdir())
            cache.chmod(0o555)
            for entry in before:
                entry.chmod(0o444)
            with as_nobody():
                again = build(Spec(path, "scale", (("VALUE", 0), ("FACTOR", 2))), HOPPER)
                other = build(Spec(path, "scale", (("VALUE", 0), ("FACTOR", 5))), HOPPER)
            assert again == stored
            assert other.code != stored.code
            assert sorted(cache.iterdir()) == before
        finally:
            cache.chmod(0o755)
            settings.cache_clear()
            kernel._read.cache_clear()
