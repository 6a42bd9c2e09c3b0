"""What of an install works, what does not, and what to type.

An install breaks in few ways, nearly all of them versions of CUDA that do not meet: torch's, the
driver's, NVRTC's and that of cuda-bindings. :func:`look` gathers the versions;
:func:`problems` compares them.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from maxk.core.settings import settings
from maxk.device.caches import cache_error, cpu_cache_folder, cuda_cache_folder

#: The first Linux driver that runs programs of a CUDA major version.
FIRST_DRIVER = {12: "525.60", 13: "580.65"}
#: CUDA kernels here need Ampere.
FIRST_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class Install:
    """The versions that have to meet.

    Attributes:
        torch: torch's version.
        torch_cuda: The CUDA that torch was built for, or None for a CPU build.
        torch_archs: Architectures that torch was built for, as ``sm_90``.
        driver: Version of the NVIDIA driver, ``"?"`` where it is there but does not tell, or None.
        driver_cuda: The newest CUDA that the driver runs, as (major, minor), or None.
        capabilities: Compute capability of each GPU that torch sees.
        hidden: The value of ``CUDA_VISIBLE_DEVICES``, or None where it is not set.
        bindings: Version of cuda-bindings, or None where it is not installed.
        nvrtc: NVRTC's version as (major, minor), or None where it does not load.
        nvrtc_error: Why it does not load.
        numba_error: Why numba cannot be imported, or None where it can.
        jit_disabled: Whether the environment keeps numba from compiling.
        cpu_cache: Folder of compiled CPU kernels, or None where the user has no home folder.
        cuda_cache: The same for CUDA kernels.
        cache_error: Why they cannot be written, or None where they can.
    """

    torch: str
    torch_cuda: str | None
    torch_archs: tuple[str, ...]
    driver: str | None
    driver_cuda: tuple[int, int] | None
    capabilities: tuple[tuple[int, int], ...]
    hidden: str | None
    bindings: str | None
    nvrtc: tuple[int, int] | None
    nvrtc_error: str | None
    numba_error: str | None
    jit_disabled: bool
    cpu_cache: Path | None
    cuda_cache: Path | None
    cache_error: str | None


@dataclass(frozen=True)
class Problem:
    """Something that does not work.

    Attributes:
        what: A sentence.
        cure: What to type or do.
    """

    what: str
    cure: str


def look() -> Install:
    """Gathers the versions."""
    available = torch.cuda.is_available()
    nvrtc, nvrtc_error = _nvrtc()
    numba_error = _import_error("numba")
    return Install(
        torch=torch.__version__,
        torch_cuda=torch.version.cuda,
        torch_archs=tuple(torch.cuda.get_arch_list()) if available else (),
        driver=_driver(),
        driver_cuda=_driver_cuda(),
        capabilities=tuple(
            torch.cuda.get_device_capability(i)
            for i in range(torch.cuda.device_count() if available else 0)
        ),
        hidden=settings().cuda_visible_devices,
        bindings=_version("cuda-bindings"),
        nvrtc=nvrtc,
        nvrtc_error=nvrtc_error,
        numba_error=numba_error,
        jit_disabled=numba_error is None and bool(sys.modules["numba"].config.DISABLE_JIT),
        cpu_cache=cpu_cache_folder(),
        cuda_cache=cuda_cache_folder(),
        cache_error=cache_error(cpu_cache_folder()) or cache_error(cuda_cache_folder()),
    )


def problems(install: Install) -> list[Problem]:
    """Returns what does not work, the most basic first; nothing is said of a GPU that is not there.

    Example:
        >>> from maxk.measure.install import look, problems
        >>> isinstance(problems(look()), list)
        True
    """
    found = []
    if install.numba_error is not None:
        found.append(
            Problem(
                f"numba cannot be imported, so nothing runs on the CPU ({install.numba_error})",
                "pip install --upgrade numba numpy",
            )
        )
    if install.jit_disabled:
        found.append(
            Problem(
                "NUMBA_DISABLE_JIT is set, so the kernels of the CPU cannot run",
                "unset NUMBA_DISABLE_JIT",
            )
        )
    if install.driver is not None:
        found += _cuda_problems(install)
    if install.cache_error is not None:
        found.append(
            Problem(
                f"compiled kernels cannot be kept ({install.cache_error}), so every process "
                "compiles them again",
                "set MAXK_CACHE_DIR to a folder that you may write",
            )
        )
    return found


def _cuda_problems(install: Install) -> Iterator[Problem]:
    if install.torch_cuda is None:
        yield Problem(
            f"torch {install.torch} is built without CUDA, but this machine has an NVIDIA driver "
            f"({install.driver})",
            "pip install --force-reinstall torch (on Linux its usual build has CUDA; a '+cpu' in "
            "a constraints or requirements file keeps it out)",
        )
        return
    major = int(install.torch_cuda.partition(".")[0])
    if install.driver_cuda is not None and install.driver_cuda[0] < major:
        yield Problem(
            f"the driver {install.driver} runs CUDA up to {_dotted(install.driver_cuda)}, but "
            f"torch {install.torch} is built for CUDA {install.torch_cuda}",
            f"update the driver to {FIRST_DRIVER.get(major, 'the newest')} or newer, or install a "
            f"torch built for CUDA {install.driver_cuda[0]}",
        )
        return
    if not install.capabilities:
        yield _unseen(install)
        return
    yield from _gpu_problems(install)
    if install.bindings is None:
        yield Problem(
            "cuda-bindings is not installed, so no kernel can be compiled",
            f'pip install "cuda-bindings=={major}.*"',
        )
        return
    if install.bindings.partition(".")[0] != str(major):
        yield Problem(
            f"cuda-bindings {install.bindings} is for another CUDA than torch's, which is "
            f"{install.torch_cuda}",
            f'pip install "cuda-bindings=={major}.*"',
        )
    package = "nvidia-cuda-nvrtc-cu12" if major == 12 else f"nvidia-cuda-nvrtc=={major}.*"
    if install.nvrtc is None:
        yield Problem(
            f"NVRTC, which compiles the kernels, does not load ({install.nvrtc_error})",
            f'pip install "{package}"',
        )
    elif install.nvrtc[0] != major:
        yield Problem(
            f"NVRTC is of CUDA {_dotted(install.nvrtc)}, torch {install.torch} of CUDA "
            f"{install.torch_cuda}",
            f'pip install "{package}"',
        )


def _unseen(install: Install) -> Problem:
    if install.hidden is not None:
        return Problem(
            f"torch sees no GPU: CUDA_VISIBLE_DEVICES is {install.hidden!r}",
            "unset CUDA_VISIBLE_DEVICES, or name the GPUs to use in it",
        )
    return Problem(
        f"torch {install.torch} sees no GPU, though there is a driver ({install.driver}) that "
        f"runs CUDA {install.torch_cuda}",
        "look whether nvidia-smi lists a GPU; in a container, start it with the GPUs "
        "(docker run --gpus all)",
    )


def _gpu_problems(install: Install) -> Iterator[Problem]:
    built = {
        int(arch[3:].rstrip("af")) // 10 for arch in install.torch_archs if arch[3:4].isdigit()
    }
    for index, capability in enumerate(install.capabilities):
        if capability < FIRST_CAPABILITY:
            yield Problem(
                f"GPU {index} has compute capability {_dotted(capability)}; the kernels need "
                f"{_dotted(FIRST_CAPABILITY)} (Ampere), so the slow reference runs there",
                "use a newer GPU, or --device cpu",
            )
        elif built and capability[0] not in built:
            yield Problem(
                f"torch {install.torch} holds no code for GPU {index} of compute capability "
                f"{_dotted(capability)} (it holds {', '.join(install.torch_archs)})",
                "pip install --upgrade torch",
            )


def _driver() -> str | None:
    """Version of the NVIDIA driver, by what it leaves in the system."""
    command = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.split()[0]
    except (OSError, subprocess.TimeoutExpired):
        pass  # not there, or stuck
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
        found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
        return found[1] if found else "?"
    except OSError:
        return None if _driver_cuda() is None else "?"


def _driver_cuda() -> tuple[int, int] | None:
    """The newest CUDA that the driver runs, asked of its own library."""
    try:
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        version = ctypes.c_int()
        failed = library.cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed else (version.value // 1000, version.value % 1000 // 10)


def _nvrtc() -> tuple[tuple[int, int] | None, str | None]:
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        status, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:
        # An absent package, an absent library or one of another age raise what they like.
        return None, _line(error)
    return ((major, minor), None) if int(status) == 0 else (None, str(status))


def _import_error(module: str) -> str | None:
    try:
        importlib.import_module(module)
    except Exception as error:
        # numba raises ImportError for a numpy it does not know, and SystemError for a broken one.
        return _line(error)
    return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
