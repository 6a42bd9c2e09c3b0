"""How much of the machine's memory may still be taken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def host_memory() -> int | None:
    """Returns the bytes that this process may still take, or None where the system does not tell.

    The least of what the machine has free, what its control group leaves, and what the limit of
    the address space leaves.
    """
    return min(_bounds(), default=None)


def _bounds() -> Iterator[int]:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024
    for group in ("/sys/fs/cgroup/memory.{}", "/sys/fs/cgroup/memory/memory.{}_in_bytes"):
        limit, used = (
            [int(line) for line in _lines(group.format(name)) if line.isdigit()]
            for name in (("max", "current") if group.endswith("{}") else ("limit", "usage"))
        )
        if limit and used:
            yield max(limit[0] - used[0], 0)
    try:
        import resource
    except ImportError:  # Windows
        return
    limit_as = resource.getrlimit(resource.RLIMIT_AS)[0]
    sizes = [line.split() for line in _lines("/proc/self/statm")]
    if limit_as != resource.RLIM_INFINITY and sizes:
        yield max(limit_as - int(sizes[0][0]) * resource.getpagesize(), 0)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return []  # not Linux, or another version of control groups
