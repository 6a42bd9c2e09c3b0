"""What the CUDA implementations share: operands as the kernels read them."""

from __future__ import annotations

import torch
from torch import Tensor

from maxk.core.errors import DeviceError
from maxk.graph.schedule import Schedule


def edge_indices(indices: Tensor) -> Tensor:
    """Node ids of the edges, checked to be what kernels read.

    Raises:
        DeviceError: they have 64 bits.
    """
    if indices.dtype != torch.int32:
        raise DeviceError(
            f"CUDA kernels read 32-bit node ids, got {indices.dtype} (a graph of 2^31 nodes or "
            f"more); partition the graph"
        )
    return indices


def floats(tensor: Tensor | None) -> Tensor | None:
    """Weights or scales as contiguous float32, or None."""
    return None if tensor is None else tensor.to(torch.float32).contiguous()


def workspace(schedule: Schedule, width: int, device: torch.device) -> Tensor | None:
    """Room for the partial sums of long rows, or None where no row can be long."""
    if schedule.num_slots == 0:
        return None
    return torch.empty(schedule.num_slots, width, dtype=torch.float32, device=device)


def fold_blocks(schedule: Schedule) -> int:
    """Blocks that add up partial sums: most of the list's places may be empty."""
    return min(schedule.num_long_rows, 4096)
