"""What plans and rooflines ask of a CUDA device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True)
class DeviceProperties:
    """Facts of one device.

    Attributes:
        name: as the driver says it.
        capability: compute capability, (9, 0) on Hopper.
        processors: streaming multiprocessors.
        shared_per_block: bytes of shared memory that one block may ask for.
        shared_per_processor: bytes of shared memory of one multiprocessor.
        l2_bytes: size of the second-level cache.
        memory_bytes: device memory.
    """

    name: str
    capability: tuple[int, int]
    processors: int
    shared_per_block: int
    shared_per_processor: int
    l2_bytes: int
    memory_bytes: int

    @property
    def vector_reductions(self) -> bool:
        """Whether one instruction adds 16 bytes of floats to global memory."""
        return self.capability >= (9, 0)


def properties(device: torch.device | str | int) -> DeviceProperties:
    """Returns the facts of a CUDA device, read once."""
    wanted = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return _properties(device_index(wanted))


def device_index(device: torch.device) -> int:
    """Index of a CUDA device; the current one where the device names none."""
    return torch.cuda.current_device() if device.index is None else device.index


@cache
def _properties(index: int) -> DeviceProperties:
    p = torch.cuda.get_device_properties(index)
    return DeviceProperties(
        name=p.name,
        capability=(p.major, p.minor),
        processors=p.multi_processor_count,
        shared_per_block=getattr(p, "shared_memory_per_block_optin", p.shared_memory_per_block),
        shared_per_processor=p.shared_memory_per_multiprocessor,
        l2_bytes=p.L2_cache_size,
        memory_bytes=p.total_memory,
    )


#: The card on which the plans' thresholds were measured; for plans without a device at hand.
H200 = DeviceProperties("NVIDIA H200", (9, 0), 132, 232448, 233472, 62914560, 150 * 10**9)
