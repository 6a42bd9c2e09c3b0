"""CUDA C++ source and macro values -> compiled kernel -> launch on torch's current stream.

Kernels are header-free ``extern "C"`` functions specialised by macros, compiled by NVRTC through
``cuda.bindings`` (both come with every CUDA build of torch) and launched with the driver. Compiled
code is kept on disk as plain cubin under a name that covers everything which changes it.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maxk.core.errors import CompileError, DeviceError
from maxk.core.files import write_file
from maxk.device.caches import cannot_keep, cuda_cache_folder
from maxk.device.compiling import compiling
from maxk.device.properties import device_index

INCLUDE = Path(__file__).parent / "include"
OPTIONS = ("--std=c++17", "--ptxas-options=-v")
Macros = tuple[tuple[str, int], ...]

_TYPES = {
    "p": ctypes.c_void_p,
    "i": ctypes.c_int32,
    "l": ctypes.c_int64,
    "f": ctypes.c_float,
}


@dataclass(frozen=True)
class Spec:
    """One kernel instance.

    Attributes:
        source: the ``.cu`` file.
        entry: name of the ``extern "C"`` function.
        macros: names and integer values, passed as ``-D``.
    """

    source: Path
    entry: str
    macros: Macros

    def __str__(self) -> str:
        values = " ".join(f"{name}={value}" for name, value in self.macros)
        return f"{self.source.parent.name}/{self.source.name}:{self.entry} [{values}]"


@dataclass(frozen=True)
class Resources:
    """The assembler's report: registers a thread, bytes spilled, bytes of static shared memory."""

    registers: int
    spill_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class Binary:
    """Compiled code and the compiler's log."""

    code: bytes
    log: str

    def resources(self, entry: str) -> Resources:
        """Reads the assembler's report of one function out of the log."""
        parts = self.log.partition(f"entry function '{entry}'")[2]
        registers = re.search(r"Used (\d+) registers(.*)", parts)
        if registers is None:
            raise CompileError(f"the compiler's log says nothing of {entry}: {self.log}")
        until_next = parts.partition("entry function")[0]
        spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", until_next)
        shared = re.search(r"(\d+) bytes smem", registers[2])
        return Resources(int(registers[1]), sum(map(int, spills)), int(shared[1]) if shared else 0)


def build(spec: Spec, capability: tuple[int, int]) -> Binary:
    """Returns the compiled code of an instance for a compute capability: from disk, or made now.

    Needs no GPU and no driver.

    Raises:
        CompileError: the compiler refused; the message carries its log.
    """
    target = _target(capability)
    text, headers = _read(spec.source)
    options = (f"--gpu-architecture={target}", *OPTIONS, *(f"-D{n}={v}" for n, v in spec.macros))
    key = _key(text, headers, options)
    found = _load(key)
    if found is None:
        with compiling():
            found = _compile(spec, text, headers, options, as_ptx=target.startswith("compute_"))
        _store(key, spec, found)
    return found


def _target(capability: tuple[int, int]) -> str:
    """Architecture to compile for: the device's own, an older one of its generation, else PTX."""
    wanted = capability[0] * 10 + capability[1]
    known = sorted(_nvrtc("nvrtcGetSupportedArchs"))
    if wanted in known:
        return f"sm_{wanted}"
    older = [arch for arch in known if arch < wanted]
    if not older:
        raise CompileError(
            f"this NVRTC compiles for sm_{known[0]} and newer, the device is sm_{wanted}"
        )
    return f"sm_{older[-1]}" if older[-1] // 10 == capability[0] else f"compute_{older[-1]}"


@cache
def _read(source: Path) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Text of a source and of all device headers."""
    headers = tuple((path.name, path.read_text()) for path in sorted(INCLUDE.glob("*.cuh")))
    return source.read_text(), headers


@cache
def _version() -> str:
    major, minor = _nvrtc("nvrtcVersion")
    return f"{major}.{minor}"


def _key(text: str, headers: Sequence[tuple[str, str]], options: Sequence[str]) -> str:
    used = [part for name, body in headers if f'"{name}"' in text for part in (name, body)]
    digest = hashlib.sha256()
    for part in (text, *used, *options, _version()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:40]


def _load(key: str) -> Binary | None:
    """A whole cache entry, or None: absent, cut short, or altered."""
    folder = cuda_cache_folder()
    if folder is None:
        return None
    try:
        code = (folder / f"{key}.cubin").read_bytes()
        note = json.loads((folder / f"{key}.json").read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(note, dict) or note.get("sha256") != hashlib.sha256(code).hexdigest():
        return None
    return Binary(code, str(note.get("log", "")))


def _store(key: str, spec: Spec, binary: Binary) -> None:
    """Writes a cache entry, each file whole or not at all; where it cannot, that is logged once."""
    folder = cuda_cache_folder()
    if folder is None:
        cannot_keep(None, None)
        return
    note = {
        "kernel": str(spec),
        "sha256": hashlib.sha256(binary.code).hexdigest(),
        "log": binary.log,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / f"{key}.cubin", binary.code, shared=True)
        write_file(folder / f"{key}.json", json.dumps(note).encode(), shared=True)
    except OSError as error:
        cannot_keep(folder, error)


def _nvrtc(function: str, *args: Any) -> Any:
    from cuda.bindings import nvrtc

    error, *values = getattr(nvrtc, function)(*args)
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        text = nvrtc.nvrtcGetErrorString(error)[1].decode()
        raise CompileError(f"{function} failed: {text}")
    return values[0] if len(values) == 1 else values


def _result(program: Any, what: str) -> bytes:
    # NVRTC writes into what it is given, and a bytes object of length one is shared by the process.
    buffer = bytearray(_nvrtc(f"nvrtcGet{what}Size", program))
    _nvrtc(f"nvrtcGet{what}", program, buffer)
    return bytes(buffer)


def _compile(
    spec: Spec, text: str, headers: Sequence[tuple[str, str]], options: Sequence[str], *,
    as_ptx: bool,
) -> Binary:  # fmt: skip
    from cuda.bindings import nvrtc

    program = _nvrtc(
        "nvrtcCreateProgram", text.encode(), spec.source.name.encode(), len(headers),
        [body.encode() for _, body in headers], [name.encode() for name, _ in headers],
    )  # fmt: skip
    try:
        failed = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])[0]
        message = _result(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if failed != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"{spec} did not compile with {' '.join(options)}:\n{message}")
        kind = "PTX" if as_ptx else "CUBIN"
        return Binary(_result(program, kind), message)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


# ---------------------------------------------------------------------------------------------
# Launching.

_INVALID_CONTEXT = 201


class Kernel:
    """A loaded kernel on one device; calling it launches it on torch's current stream.

    Args:
        function: driver handle.
        index: device index.
        signature: a letter an argument: p pointer (tensor or None), i int32, l int64, f float.
    """

    __slots__ = ("_function", "_index", "_name", "_types")

    def __init__(self, function: int, index: int, signature: str, name: str = "kernel") -> None:
        self._function = function
        self._index = index
        self._types = tuple(_TYPES[letter] for letter in signature)
        self._name = name

    def __call__(
        self, grid: tuple[int, int] | int, warps: int, *args: Tensor | int | float | None,
        shared: int = 0,
    ) -> None:  # fmt: skip
        """Launches blocks of ``warps`` warps; nothing is launched where the grid is empty."""
        x, y = grid if isinstance(grid, tuple) else (grid, 1)
        if x == 0 or y == 0:
            return
        if len(args) != len(self._types):
            raise TypeError(f"{self._name} takes {len(self._types)} arguments, got {len(args)}")
        values = tuple(
            [0 if a is None else a.data_ptr() if isinstance(a, Tensor) else a for a in args]
        )
        if torch.cuda.current_device() == self._index:
            self._launch(x, y, warps, shared, values)
        else:
            with torch.cuda.device(self._index):
                self._launch(x, y, warps, shared, values)

    def _launch(self, x: int, y: int, warps: int, shared: int, values: tuple[Any, ...]) -> None:
        stream = torch.cuda.current_stream(self._index).cuda_stream
        launch = _launcher()
        params = (values, self._types)
        error = launch(self._function, x, y, 1, 32 * warps, 1, 1, shared, stream, params, 0)[0]
        if int(error) == _INVALID_CONTEXT:
            torch.cuda.set_device(self._index)  # a thread that has not touched CUDA yet
            error = launch(self._function, x, y, 1, 32 * warps, 1, 1, shared, stream, params, 0)[0]
        if int(error):
            raise DeviceError(
                f"launching {self._name} failed: {_error_name(error)} (grid {x} x {y}, "
                f"{warps} warps, {shared} bytes of shared memory)"
            )


@cache
def _launcher() -> Any:
    from cuda.bindings import driver

    return driver.cuLaunchKernel


_lock = threading.Lock()
_kernels: dict[tuple[Spec, int], Kernel] = {}
# Whether the process that this one was forked from had kernels loaded; they are not usable here.
_parent_had_kernels = False


def _after_fork() -> None:
    global _lock, _parent_had_kernels
    _lock = threading.Lock()  # another thread of the parent may have held it
    _parent_had_kernels = _parent_had_kernels or bool(_kernels)
    _kernels.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)


def kernel(spec: Spec, signature: str, device: torch.device, shared: int = 0) -> Kernel:
    """Returns the loaded kernel of an instance on a device.

    Args:
        spec: the instance.
        signature: argument letters, see :class:`Kernel`.
        device: a CUDA device.
        shared: most bytes of dynamic shared memory that launches will ask for.

    Raises:
        CompileError: it does not compile.
        DeviceError: the driver cannot load it, or this process was forked from one that had used
            the GPU.
    """
    if _parent_had_kernels:
        raise DeviceError(
            "a forked process cannot use the GPU that its parent has used; start it with "
            "multiprocessing.get_context('spawn'), or a DataLoader's workers with "
            "multiprocessing_context='spawn'"
        )
    index = device_index(device)
    key = (spec, index)
    found = _kernels.get(key)
    if found is None:
        with _lock:
            found = _kernels.get(key)
            if found is None:
                found = _kernels[key] = _load_kernel(spec, signature, index, shared)
    return found


def _load_kernel(spec: Spec, signature: str, index: int, shared: int) -> Kernel:
    from cuda.bindings import driver

    with torch.cuda.device(index):
        torch.cuda.current_stream(index).query()  # makes the primary context current
        binary = build(spec, torch.cuda.get_device_capability(index))
        library = _driver("cuLibraryLoadData", binary.code, [], [], 0, [], [], 0)
        function = _driver("cuLibraryGetKernel", library, spec.entry.encode())
        if shared > 48 * 1024:
            limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _driver("cuKernelSetAttribute", limit, shared, function, driver.CUdevice(index))
        _driver("cuKernelGetFunction", function)  # load now, not inside a stream capture
        return Kernel(int(function), index, signature, str(spec))


def _driver(function: str, *args: Any) -> Any:
    from cuda.bindings import driver

    error, *values = getattr(driver, function)(*args)
    if int(error):
        raise DeviceError(f"{function} failed: {_error_name(error)}")
    return values[0] if len(values) == 1 else values


def _error_name(error: Any) -> str:
    from cuda.bindings import driver

    name = driver.cuGetErrorName(error)[1]
    return name.decode() if name else str(int(error))


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy where it does not start on a 16-byte boundary."""
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()
