"""Compilation and the cache of compiled kernels; no GPU is needed."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from maxk.core.errors import CompileError, DeviceError
from maxk.core.settings import settings
from maxk.device import kernel as module
from maxk.device.kernel import Kernel, Spec, build

pytest.importorskip("cuda.bindings.nvrtc")

HOPPER = (9, 0)
TEXT = """
#include "numeric.cuh"
extern "C" __global__ void twice(float* a, int n) { if (threadIdx.x < n) a[threadIdx.x] *= FACTOR; }
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder of its own for each test."""
    monkeypatch.setenv("MAXK_CACHE_DIR", str(tmp_path / "cache"))
    settings.cache_clear()
    module._read.cache_clear()
    yield tmp_path / "cache" / "kernels"
    settings.cache_clear()
    module._read.cache_clear()


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the instances that the compiler was asked for."""
    asked: list[str] = []
    original = module._compile

    def counting(spec: Spec, *args: Any, **kwargs: Any) -> Any:
        asked.append(spec.entry)
        return original(spec, *args, **kwargs)

    monkeypatch.setattr(module, "_compile", counting)
    return asked


def spec(tmp_path: Path, factor: int = 2, text: str = TEXT) -> Spec:
    source = tmp_path / "twice.cu"
    source.write_text(text)
    return Spec(source, "twice", (("VALUE", 0), ("FACTOR", factor)))


def test_compiled_once_and_kept_as_plain_cubin(
    tmp_path: Path, cache: Path, compiles: list[str]
) -> None:
    first = build(spec(tmp_path), HOPPER)
    second = build(spec(tmp_path), HOPPER)
    assert first == second
    assert compiles == ["twice"]
    assert first.code.startswith(b"\x7fELF")
    (file,) = cache.glob("*.cubin")
    assert file.read_bytes() == first.code
    resources = first.resources("twice")
    assert 0 < resources.registers < 32
    assert resources.spill_bytes == 0


def test_no_bytes_object_is_written_to(tmp_path: Path, cache: Path) -> None:
    """Python keeps one object for every single byte, and all of a process shares it.

    A literal is that object where a module is compiled, not where it comes from a .pyc file. PTX
    for a GPU that the compiler does not know is made without a line in the log.
    """
    where = spec(tmp_path).source
    code = (
        "from pathlib import Path\n"
        "from maxk.device.kernel import Spec, build\n"
        f"source = Path({str(where)!r})\n"
        "build(Spec(source, 'twice', (('VALUE', 0), ('FACTOR', 2))), (99, 0))\n"
        "print([value for value in range(256) if bytes([value])[0] != value])\n"
    )
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path / "none")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
    assert list(cache.glob("*.cubin"))


def test_key_holds_all_that_changes_the_binary(
    tmp_path: Path, compiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    build(spec(tmp_path), HOPPER)
    build(spec(tmp_path, factor=3), HOPPER)
    build(spec(tmp_path), (8, 0))
    other = tmp_path / "other"
    other.mkdir()
    build(spec(other, text=TEXT + "// changed\n"), HOPPER)
    assert len(compiles) == 4
    module._read.cache_clear()
    include = tmp_path / "include"
    include.mkdir()
    (include / "numeric.cuh").write_text("#define CHANGED 1\n")
    monkeypatch.setattr(module, "INCLUDE", include)
    build(spec(tmp_path), HOPPER)
    assert len(compiles) == 5
    monkeypatch.setattr(module, "_version", lambda: "99.0")
    build(spec(tmp_path), HOPPER)
    assert len(compiles) == 6


def test_header_that_is_not_included_does_not_matter(
    tmp_path: Path, compiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    include = tmp_path / "include"
    include.mkdir()
    (include / "numeric.cuh").write_text("")
    monkeypatch.setattr(module, "INCLUDE", include)
    build(spec(tmp_path), HOPPER)
    module._read.cache_clear()
    (include / "unused.cuh").write_text("#error not for you\n")
    build(spec(tmp_path), HOPPER)
    assert len(compiles) == 1


@pytest.mark.parametrize("damage", ["cut", "altered", "no note", "bad note", "empty"])
def test_broken_entry_rebuilds_itself(
    tmp_path: Path, cache: Path, compiles: list[str], damage: str
) -> None:
    whole = build(spec(tmp_path), HOPPER)
    (cubin,), (note,) = cache.glob("*.cubin"), cache.glob("*.json")
    if damage == "cut":
        cubin.write_bytes(whole.code[:100])
    elif damage == "altered":
        cubin.write_bytes(whole.code[:-1] + b"\xff")
    elif damage == "no note":
        note.unlink()
    elif damage == "bad note":
        note.write_text("[1, 2")
    else:
        cubin.write_bytes(b"")
    assert build(spec(tmp_path), HOPPER).code == whole.code
    assert len(compiles) == 2
    assert json.loads(note.read_text())["sha256"] == hashlib.sha256(whole.code).hexdigest()
    build(spec(tmp_path), HOPPER)
    assert len(compiles) == 2


def test_folder_that_cannot_be_written(
    tmp_path: Path, cache: Path, compiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.parent.write_text("a file where the folder should be")
    assert build(spec(tmp_path), HOPPER).code
    assert compiles == ["twice"]


def test_no_half_written_files(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", full)
    build(spec(tmp_path), HOPPER)
    assert list(cache.iterdir()) == []


def test_many_at_once(tmp_path: Path, cache: Path) -> None:
    wanted = spec(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        codes = {binary.code for binary in pool.map(lambda _: build(wanted, HOPPER), range(8))}
    assert len(codes) == 1
    assert len(list(cache.iterdir())) == 2


def test_error_carries_the_log(tmp_path: Path) -> None:
    what = r"twice\.cu:twice \[VALUE=0 FACTOR=2\] did not compile"
    with pytest.raises(CompileError, match=what) as e:
        build(spec(tmp_path, text=TEXT.replace("FACTOR", "nonsense")), HOPPER)
    assert 'identifier "nonsense" is undefined' in str(e.value)


def test_architectures(tmp_path: Path) -> None:
    assert module._target((9, 0)) == "sm_90"
    known = module._nvrtc("nvrtcGetSupportedArchs")
    assert module._target((8, 8)) == ("sm_88" if 88 in known else "sm_87")
    newest = f"compute_{max(known)}"
    assert module._target((99, 0)) == newest
    with pytest.raises(CompileError, match="sm_30"):
        module._target((3, 0))
    ptx = build(spec(tmp_path), (99, 0))
    assert b".visible .entry twice" in ptx.code


class Recorder:
    """Stands for the driver's launch: remembers what it was given."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *args: Any) -> tuple[int]:
        self.calls.append(args)
        return (self.errors.pop(0) if self.errors else 0,)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    class Stream:
        cuda_stream = 77

    recorder = Recorder()
    monkeypatch.setattr(module, "_launcher", lambda: recorder)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: Stream)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    return recorder


class TestLaunch:
    def test_arguments_are_packed_by_signature(self, driver: Recorder) -> None:
        tensor = torch.zeros(4)
        Kernel(5, 0, "ppilf")((3, 2), 4, tensor, None, 7, 2**40, 0.5, shared=100)
        ((function, x, y, z, threads, _, _, shared, stream, params, extra),) = driver.calls
        assert (function, x, y, z, threads, shared, stream, extra) == (5, 3, 2, 1, 128, 100, 77, 0)
        values, types = params
        assert values == (tensor.data_ptr(), 0, 7, 2**40, 0.5)
        assert types == (
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float,
        )  # fmt: skip

    def test_empty_grid_is_not_launched(self, driver: Recorder) -> None:
        Kernel(5, 0, "p")(0, 4, None)
        Kernel(5, 0, "p")((4, 0), 4, None)
        assert driver.calls == []

    def test_wrong_number_of_arguments(self, driver: Recorder) -> None:
        with pytest.raises(TypeError, match="takes 2 arguments, got 1"):
            Kernel(5, 0, "pp")(1, 1, None)

    def test_thread_without_a_context_tries_again(self, driver: Recorder) -> None:
        driver.errors = [201]
        Kernel(5, 0, "p")(1, 1, None)
        assert len(driver.calls) == 2

    def test_refusal_names_the_kernel(
        self, driver: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_error_name", lambda error: "CUDA_ERROR_INVALID_VALUE")
        driver.errors = [1]
        with pytest.raises(DeviceError, match="launching twice failed: CUDA_ERROR_INVALID_VALUE"):
            Kernel(5, 0, "p", "twice")(1, 1, None)
