"""How much memory a process took."""

from __future__ import annotations

import sys

import torch


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
