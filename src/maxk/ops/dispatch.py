"""Which implementation of an operation runs, and why.

Every operation has up to three: ``reference`` (plain PyTorch, any device), ``cpu`` (numba) and
``cuda`` (CUDA C++ compiled at run time). By default the device of the operands decides; a call's
``implementation=`` or the context manager :func:`implementation` overrides it. A device that cannot
run its own implementation is an error or a warning with the reason, never a silent fallback.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from maxk.core.errors import DeviceError
from maxk.device.compiling import run_clock

OPERATIONS = ("maxk", "norm_maxk", "spgemm", "sspmm", "spmm")
IMPLEMENTATIONS = ("reference", "cpu", "cuda")

_override: ContextVar[str | None] = ContextVar("maxk_implementation", default=None)
# A plain global: autograd runs a GPU's backward on a thread of its own, where context variables
# hold their defaults.
_recorder: Recorder | None = None


@dataclass(frozen=True)
class Choice:
    """The implementation that an operation uses, and the reason."""

    op: str
    implementation: str
    reason: str


@dataclass
class Recorder:
    """Seconds spent in each operation, filled while :func:`record` is active."""

    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def select(self) -> float:
        """Seconds in MaxK, with the norm before it where they are one operation."""
        return self.seconds.get("maxk", 0.0) + self.seconds.get("norm_maxk", 0.0)

    @property
    def aggregate(self) -> float:
        """Seconds in all else, which is aggregation and its gradients."""
        return sum(self.seconds.values()) - self.select

    def add(self, op: str, seconds: float) -> None:
        """Adds to one operation's total."""
        self.seconds[op] = self.seconds.get(op, 0.0) + seconds


@contextmanager
def implementation(name: str) -> Iterator[None]:
    """Runs every operation inside the block with one implementation.

    Example:
        >>> import torch, maxk
        >>> with maxk.implementation("reference"):
        ...     features = maxk.maxk(torch.tensor([[1.0, 3.0, 2.0]]), k=1)
        >>> features.columns
        tensor([[1]], dtype=torch.uint8)
    """
    token = _override.set(_check_implementation(name))
    try:
        yield
    finally:
        _override.reset(token)


@contextmanager
def record() -> Iterator[Recorder]:
    """Measures the seconds spent in each operation inside the block, but not in compiling it.

    On a GPU every operation is followed by a synchronisation, so the whole is slower than usual.
    """
    global _recorder
    outer, recorder = _recorder, Recorder()
    _recorder = recorder
    try:
        yield recorder
    finally:
        _recorder = outer


def requested(implementation: str | None = None) -> str | None:
    """What a call, else the block around it, asks for; None leaves the choice to the device."""
    return implementation or _override.get()


def choose(op: str, device: torch.device, implementation: str | None = None) -> Choice:
    """Chooses the implementation of an operation for operands on a device.

    Raises:
        ValueError: the implementation is unknown, or is made for another device.
        DeviceError: the requested implementation cannot run on this machine.
    """
    wanted = requested(implementation)
    if wanted is not None:
        _check_implementation(wanted)
        if wanted != "reference" and wanted != device.type:
            raise ValueError(
                f"implementation={wanted!r} needs operands on {wanted}, got {device}; "
                f"move them or use 'reference'"
            )
        if wanted == "cuda":
            problem = cuda_problem(device)
            if problem:
                raise DeviceError(f"implementation='cuda' cannot run here: {problem}")
        return Choice(op, wanted, "asked for")
    if device.type == "cpu":
        return Choice(op, "cpu", "operands on the CPU")
    if device.type == "cuda":
        problem = cuda_problem(device)
        if problem is None:
            return Choice(op, "cuda", "operands on a CUDA device")
        _warn_once(f"maxk runs the slow reference on {device}: {problem}")
        return Choice(op, "reference", problem)
    return Choice(op, "reference", f"no kernels for device type {device.type!r}")


@cache
def cuda_problem(device: torch.device) -> str | None:
    """Why the CUDA kernels cannot run on a device, or None where they can."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        return f"compute capability {major}.{minor} is below 8.0 (Ampere)"
    try:
        importlib.import_module("cuda.bindings.nvrtc")
    except ImportError as error:
        return f"cuda-bindings cannot be imported ({error}); pip install 'maxk[cuda]'"
    return None


def survey() -> list[dict[str, str]]:
    """What every operation would use on each device of this machine, and why."""
    devices = [torch.device("cpu")]
    devices += [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    return [
        {"op": op, "device": str(device), "implementation": choice.implementation,
         "reason": choice.reason}
        for device in devices
        for op in OPERATIONS
        for choice in [choose(op, device)]
    ]  # fmt: skip


def call(
    op: str, function: str, device: torch.device, implementation: str | None, *args: Any
) -> Any:
    """Runs one function of an operation with the implementation chosen for a device."""
    run = _function(op, choose(op, device, implementation).implementation, function)
    recorder = _recorder
    if recorder is None:
        return run(*args)
    _synchronize(device)
    start = run_clock()
    result = run(*args)
    _synchronize(device)
    recorder.add(op, run_clock() - start)
    return result


@cache
def _function(op: str, implementation: str, function: str) -> Any:
    return getattr(importlib.import_module(f"maxk.ops.{op}.{implementation}"), function)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _check_implementation(name: str) -> str:
    if name not in IMPLEMENTATIONS:
        raise ValueError(f"implementation must be one of {IMPLEMENTATIONS}, got {name!r}")
    return name


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)
