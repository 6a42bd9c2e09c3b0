from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from maxk.core.settings import settings
from maxk.measure.install import Install, Problem, look, problems

GOOD = Install(
    torch="2.11.0+cu130", torch_cuda="13.0", torch_archs=("sm_80", "sm_90", "compute_90"),
    driver="580.82.07", driver_cuda=(13, 0), capabilities=((9, 0),), hidden=None,
    bindings="13.3.1", nvrtc=(13, 0), nvrtc_error=None, numba_error=None,
    jit_disabled=False, cpu_cache=Path("/cache/cpu"), cuda_cache=Path("/cache/kernels"),
    cache_error=None,
)  # fmt: skip
CPU = replace(
    GOOD, torch="2.13.0+cpu", torch_cuda=None, torch_archs=(), driver=None, driver_cuda=None,
    capabilities=(), bindings=None, nvrtc=None, nvrtc_error="No module named 'cuda'",
)  # fmt: skip


def only(install: Install) -> Problem:
    (problem,) = problems(install)
    for text in (problem.what, problem.cure):
        assert "\n" not in text
    return problem


@pytest.mark.parametrize("install", [
    GOOD, CPU,
    replace(CPU, torch="2.13.0", torch_cuda="13.0"),  # a CUDA build on a machine without a GPU
    replace(GOOD, driver_cuda=(13, 2)), replace(GOOD, driver_cuda=None),
    replace(GOOD, torch_cuda="12.6", bindings="12.9.1", nvrtc=(12, 8), driver_cuda=(12, 4)),
    replace(GOOD, hidden="0"),
])  # fmt: skip
def test_what_fits_is_no_problem(install: Install) -> None:
    assert problems(install) == []


@pytest.mark.parametrize(("changed", "what", "cure"), [
    ({"torch": "2.13.0+cpu", "torch_cuda": None, "capabilities": ()},
     "torch 2.13.0+cpu is built without CUDA, but this machine has an NVIDIA driver (580.82.07)",
     "pip install --force-reinstall torch"),
    ({"driver": "550.54.15", "driver_cuda": (12, 4), "capabilities": ()},
     "the driver 550.54.15 runs CUDA up to 12.4, but torch 2.11.0+cu130 is built for CUDA 13.0",
     "update the driver to 580.65 or newer, or install a torch built for CUDA 12"),
    ({"capabilities": (), "hidden": ""}, "CUDA_VISIBLE_DEVICES is ''", "unset CUDA_VISIBLE"),
    ({"capabilities": ()}, "sees no GPU, though there is a driver (580.82.07)", "nvidia-smi"),
    ({"bindings": None}, "cuda-bindings is not installed", 'pip install "cuda-bindings==13.*"'),
    ({"bindings": "12.9.1"}, "cuda-bindings 12.9.1 is for another CUDA than torch's, which is 13.0",
     'pip install "cuda-bindings==13.*"'),
    ({"nvrtc": None, "nvrtc_error": "libnvrtc.so.13 not found"},
     "NVRTC, which compiles the kernels, does not load (libnvrtc.so.13 not found)",
     'pip install "nvidia-cuda-nvrtc==13.*"'),
    ({"nvrtc": (12, 8)}, "NVRTC is of CUDA 12.8, torch 2.11.0+cu130 of CUDA 13.0",
     'pip install "nvidia-cuda-nvrtc==13.*"'),
    ({"torch_cuda": "12.6", "bindings": "12.9.1"}, "NVRTC is of CUDA 13.0",
     'pip install "nvidia-cuda-nvrtc-cu12"'),
    ({"capabilities": ((9, 0), (7, 5))}, "GPU 1 has compute capability 7.5", "--device cpu"),
    ({"capabilities": ((12, 0),)}, "holds no code for GPU 0 of compute capability 12.0",
     "pip install --upgrade torch"),
    ({"numba_error": "Numba needs NumPy 2.4 or less"},
     "nothing runs on the CPU (Numba needs NumPy 2.4 or less)", "pip install --upgrade numba"),
    ({"jit_disabled": True}, "NUMBA_DISABLE_JIT is set", "unset NUMBA_DISABLE_JIT"),
    ({"cache_error": "/cache: Read-only file system"},
     "compiled kernels cannot be kept (/cache: Read-only file system)", "set MAXK_CACHE_DIR"),
])  # fmt: skip
def test_a_broken_install_and_its_cure(changed: dict[str, object], what: str, cure: str) -> None:
    problem = only(replace(GOOD, **changed))  # type: ignore[arg-type]
    assert what in problem.what
    assert cure in problem.cure


def test_several_problems_come_at_once() -> None:
    broken = replace(GOOD, nvrtc=(12, 8), bindings="12.9.1", cache_error="full")
    assert [p.what.split()[0] for p in problems(broken)] == ["cuda-bindings", "NVRTC", "compiled"]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine with an NVIDIA driver of CUDA 12.4, a torch for 13.0 and NVRTC of 12.8."""
    importlib.import_module("numba")  # which asks ctypes for its own library when it is first read
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 550.54.15\necho 550.54.15\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("MAXK_CACHE_DIR", str(tmp_path / "cache"))
    settings.cache_clear()

    def version(pointer: object) -> int:
        pointer._obj.value = 12040  # type: ignore[attr-defined]
        return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(cuDriverGetVersion=version))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    nvrtc = SimpleNamespace(nvrtcVersion=lambda: (0, 12, 8))
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", nvrtc)
    yield tmp_path
    settings.cache_clear()


def test_versions_are_found(machine: Path) -> None:
    found = look()
    assert (found.driver, found.driver_cuda, found.torch_cuda) == ("550.54.15", (12, 4), "13.0")
    assert (found.nvrtc, found.nvrtc_error, found.hidden) == ((12, 8), None, "1")
    assert (found.numba_error, found.cache_error) == (None, None)
    assert found.cpu_cache == machine / "cache" / "cpu"
    assert found.cuda_cache == machine / "cache" / "kernels"
    assert not (machine / "cache").exists()
    assert only(found).what.startswith("the driver 550.54.15 runs CUDA up to 12.4")


def test_what_is_missing_is_found(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "nvidia-smi").write_text("#!/bin/sh\necho no devices found; exit 9\n")
    (machine / "cache").write_text("a file where a folder should be")
    monkeypatch.setenv("MAXK_CACHE_DIR", str(machine / "cache" / "kernels"))
    settings.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    monkeypatch.setitem(sys.modules, "numba", None)
    found = look()
    assert found.driver is not None, "the driver's own library answers"
    assert found.nvrtc is None
    assert "cuda.bindings.nvrtc" in str(found.nvrtc_error)
    assert "numba" in str(found.numba_error)
    assert found.cache_error == f"{machine / 'cache'}: Not a directory"


def test_a_driver_without_an_answer(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> object:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert look().driver_cuda is None
    refusing = SimpleNamespace(cuDriverGetVersion=lambda pointer: 3)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: refusing)
    assert look().driver_cuda is None
