"""Where a number was measured: one dict of versions, machine, commit and device."""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

#: Installed packages that can change a result, a speed or an error.
PACKAGES = (
    "numpy",
    "numba",
    "scipy",
    "scikit-learn",
    "safetensors",
    "torch-geometric",
    "dgl",
    "ogb",
    "cuda-bindings",
)


def device_name(device: torch.device) -> str:
    """Returns the GPU's name, or ``cpu``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Returns the facts that a reader needs to repeat a measurement.

    Args:
        device: What was measured on; its name becomes ``device``.

    Returns:
        Values that JSON can hold: ``maxk``, ``commit`` (``unknown`` outside a checkout, with
        ``-dirty`` where files differ from it), ``date``, ``python``, ``torch``, ``cuda`` (None on
        a CPU build), ``driver`` (None without a GPU), ``packages``, ``system``, ``machine``,
        ``cores``, ``threads``, ``memory`` in bytes, ``device`` and ``gpus``.
    """
    device = torch.device(device)
    gpus = _gpus()
    return {
        "maxk": _version("maxk"),
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "driver": _driver() if gpus else None,
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "system": platform.platform(),
        "machine": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory": _memory(),
        "device": device_name(device),
        "gpus": gpus,
    }


@functools.cache
def commit() -> str:
    """Returns the commit of the checkout that this package runs from, or ``unknown``."""
    package = Path(__file__).resolve().parents[1]
    root = package.parents[1]
    # An installed package may be inside some other project's repository.
    if package != root / "src" / "maxk" or not (root / ".git").exists():
        return "unknown"
    head = _output("git", "-C", str(root), "rev-parse", "--short=12", "HEAD")
    if head is None:
        return "unknown"
    changed = _output("git", "-C", str(root), "status", "--porcelain", "--", "src")
    return f"{head}-dirty" if changed else head


def _gpus() -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            {
                "name": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "memory": properties.total_memory,
            }
        )
    return found


@functools.cache
def _driver() -> str | None:
    text = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return text.splitlines()[0].strip() if text else None


@functools.cache
def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not POSIX
        return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
