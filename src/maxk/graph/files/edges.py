"""What every format is read into, and the checks that all of them share."""

from __future__ import annotations

import contextlib
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from maxk.core.errors import DataError
from maxk.core.memory import host_memory

#: What readers of damaged files raise, in the standard library, NumPy and SciPy.
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ValueError,
    OverflowError,
    OSError,
    MemoryError,
    NotImplementedError,
    RuntimeError,
)

#: Bytes that a node takes at least while a graph is made: offsets, ids, sorted ids.
NODE_BYTES = 24

#: Nodes per edge from which on ids are no numbers from 0: in a graph without isolated nodes there
#: are two at most.
SPARSE_IDS = 20
#: What to do about them.
HASHED = (
    "the ids look like hashes or 64-bit identifiers; number the nodes from 0, for example by "
    "numpy.unique(edge_index, return_inverse=True)"
)


@dataclass(frozen=True)
class Edges:
    """Edges as a file holds them, ids not yet compared with a node count.

    Attributes:
        edge_index: Integer [2, E], sources in row 0, targets in row 1.
        weight: float32 [E], or None.
        num_src: Number of source nodes where the file says it.
        num_dst: Number of target nodes where the file says it.
        notes: What in the file was not read or is odd, a sentence each.
    """

    edge_index: Tensor
    weight: Tensor | None = None
    num_src: int | None = None
    num_dst: int | None = None
    notes: tuple[str, ...] = ()


def check_file(path: Path) -> None:
    """Raise DataError where there is no file."""
    if not path.is_file():
        kind = "is a folder, not a file" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {kind}")


def check_finite(values: Tensor, what: str) -> None:
    """Raise DataError naming the first NaN or infinity of a vector."""
    finite = values.isfinite()
    if not bool(finite.all()):
        position = int((~finite).nonzero()[0])
        raise DataError(
            f"{what} must be finite, got {float(values[position])} at position {position}"
        )


def check_room(nbytes: int, what: str) -> None:
    """Raise DataError where ``nbytes`` are more than the memory that is free.

    A system that overcommits promises memory that it does not have, and ends the process when a
    too large array is filled, so what a file declares is compared before.
    """
    free = host_memory()
    if free is not None and nbytes > free:
        raise DataError(
            f"{what} does not fit in memory: needs {nbytes / 2**30:.3g} GiB, "
            f"{free / 2**30:.3g} GiB are free"
        )


def check_reach(edges: Edges, nodes: int, what: str) -> None:
    """Raise DataError where ids reach so far that a graph of them does not fit in memory.

    Args:
        edges: Edges of a file that states no node count.
        nodes: One more than the largest id.
        what: What messages call the file.
    """
    count = edges.edge_index.shape[1]
    free = host_memory()
    if free is not None and 2 * NODE_BYTES * nodes > free and nodes > SPARSE_IDS * max(count, 1):
        raise DataError(
            f"{what}: the largest node id is {nodes - 1} with only {count} edges, so {HASHED}"
        )
    check_room(2 * NODE_BYTES * nodes, f"{what}: a graph of {nodes} x {nodes} nodes")


@contextlib.contextmanager
def in_memory(what: str) -> Iterator[None]:
    """Turn memory that cannot be had, from NumPy or torch, into a DataError about ``what``.

    A wider dtype may need eight times the memory that :func:`check_room` compared.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not re.search("memory|overflow", str(error)):
            raise
        raise DataError(f"{what} does not fit in memory") from error
