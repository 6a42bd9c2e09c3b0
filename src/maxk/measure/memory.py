"""How much memory a process or a single call took."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from maxk.core.memory import host_memory


def peak_memory(device: torch.device | str) -> int:
    """Returns the most bytes used so far.

    On a GPU: what torch allocated on it since :func:`reset_peak_memory`. On the CPU: the resident
    set of the whole process since it started, interpreter and libraries included (a few hundred
    MiB); 0 where the system does not tell.
    """
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_peak_memory(device: torch.device | str) -> None:
    """Starts a new peak on a GPU; a process's resident peak cannot be reset."""
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def free_memory(device: torch.device | str) -> int | None:
    """Returns the bytes that may still be taken, or None where the system does not tell.

    On a GPU, what torch keeps for itself but does not use counts as free.
    """
    device = torch.device(device)
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + kept
    return host_memory()


def added_memory(call: Callable[[], object], device: torch.device | str) -> int:
    """Runs a call once and returns the most bytes of tensors that it held beyond those before it.

    On a GPU torch's allocator counts. On the CPU the storages that torch's operations return are
    followed until they are freed: what a library takes inside one operation is not seen, and
    sparse tensors are not counted.

    Example:
        >>> import torch
        >>> added_memory(lambda: torch.ones(1000) + 1, "cpu")
        8000
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with _Followed() as followed:
        call()
    peak: int = followed.peak
    return peak


class _Followed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the storages that come to life inside, and takes off those that die."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self._now = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # What an operation is given and nothing has returned is older than this block.
        given = {_storage_id(leaf) for leaf in tree_leaves((args, kwargs or {}))}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            place = _storage_id(leaf)
            if place is not None and place not in given and place not in self._alive:
                self._add(leaf)
        return result

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        place, size = storage._cdata, storage.nbytes()

        def gone(_: object) -> None:
            self._alive.pop(place, None)
            self._now -= size

        self._alive[place] = weakref.ref(storage, gone)
        self._now += size
        self.peak = max(self.peak, self._now)


def _storage_id(leaf: object) -> int | None:
    if not isinstance(leaf, Tensor) or leaf.layout != torch.strided:
        return None
    place: int = leaf.untyped_storage()._cdata
    return place
