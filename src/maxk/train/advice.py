"""What a run needs of the memory, and what to change where it does not fit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import torch

from maxk.core.errors import TrainingError
from maxk.data.dataset import Dataset
from maxk.data.describe import ModelShape, estimate_memory
from maxk.measure.memory import free_memory
from maxk.train.config import TrainConfig

# How the message of torch's allocator for the CPU, a plain RuntimeError, starts.
_CPU_FULL = "DefaultCPUAllocator"


def needed_memory(config: TrainConfig, dataset: Dataset, device: torch.device) -> int:
    """Returns the estimate of :func:`~maxk.data.describe.estimate_memory` for a run."""
    shape = ModelShape(
        config.model,
        config.nonlinearity,
        config.hidden,
        config.layers,
        config.k,
        config.dropout,
        config.norm,
    )
    return estimate_memory(dataset, shape, device=device.type)


def forecast(config: TrainConfig, dataset: Dataset, device: torch.device) -> str:
    """Returns the memory that a run will need next to what is free, before it takes any."""
    need, free = needed_memory(config, dataset, device), free_memory(device)
    text = f"memory: about {_size(need)}"
    if free is None:
        return text
    text += f" of {_size(free)} free on {device}"
    return (
        text
        if need <= free
        else f"{text}, which may not be enough: {smaller_settings(config, dataset)}"
    )


def smaller_settings(config: TrainConfig, dataset: Dataset) -> str:
    """Returns flags that lower the need, each with what the run would need then."""
    device = torch.device("cpu" if config.device == "cpu" else "cuda")
    present = needed_memory(config, dataset, device)
    tries: list[tuple[str, TrainConfig]] = []
    if config.nonlinearity == "relu":
        k = max(1, config.hidden // 8)
        maxk = replace(config, nonlinearity="maxk", k=k)
        tries.append((f"--nonlinearity maxk --k {k}", maxk))
    elif config.k > 1:
        half = config.k // 2
        tries.append((f"--k {half}", replace(config, k=half)))
    if config.hidden > 1:
        half = config.hidden // 2
        narrow = replace(config, hidden=half, k=min(config.k, half))
        tries.append((f"--hidden {half}", narrow))
    if config.layers > 1:
        fewer = config.layers - 1
        tries.append((f"--layers {fewer}", replace(config, layers=fewer)))
    suggestions = []
    for flags, changed in tries:
        need = needed_memory(changed, dataset, device)
        # A saving below one percent does not help.
        if need < 0.99 * present:
            suggestions.append(f"{flags} (about {_size(need)})")
    if device.type == "cuda":
        suggestions.append("--device cpu")
    if not suggestions:
        return "the graph and its features alone need that much"
    first, last = ", ".join(suggestions[:-1]), suggestions[-1]
    return f"try {first} or {last}" if first else f"try {last}"


@contextlib.contextmanager
def within_memory(config: TrainConfig, dataset: Dataset, device: torch.device) -> Iterator[None]:
    """Turns a full memory inside into one sentence with flags that need less.

    Raises:
        TrainingError: the memory of the device was too small.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        full = isinstance(error, MemoryError | torch.OutOfMemoryError) or _CPU_FULL in str(error)
        if not full:
            raise
        need = _size(needed_memory(config, dataset, device))
        raise TrainingError(
            f"this run does not fit in the memory of {device}: it needs about {need}; "
            f"{smaller_settings(config, dataset)}"
        ) from error


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
