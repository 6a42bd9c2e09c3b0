"""How much memory a process took, and how much a training run will take."""

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


def training_bytes(
    *, nodes: int, edges: int, feature_bytes: int, hidden: int, layers: int, k: int | None
) -> int:
    """Returns about how many bytes full-batch training of a SAGE model needs.

    Counted are the graph with its transpose, the features, and per layer what backward needs: for
    MaxK the ``[N, k]`` values and columns, for ReLU its ``[N, D]`` output, beside the ``[N, D]``
    aggregate and the norm's output; three more ``[N, D]`` buffers are alive while one layer runs.
    The library itself and the weights are left out.

    Args:
        nodes: N.
        edges: E.
        feature_bytes: Size of the input features as stored.
        hidden: D.
        layers: Number of graph layers.
        k: Kept entries a row, None for ReLU.
    """
    graph = 2 * 8 * (nodes + 1) + 3 * 4 * edges
    dense = 4 * nodes * hidden
    column = 1 if hidden <= 256 else 2
    kept = dense if k is None else nodes * k * (4 + column)
    return graph + feature_bytes + layers * (kept + 2 * dense) + 3 * dense
