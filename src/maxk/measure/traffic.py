"""How many bytes each operation has to move, counted from its access pattern.

Letters: N source nodes, M target nodes, E edges, D width, k kept entries; ``v`` bytes per value,
``c`` bytes per column id (1 to D = 256, 2 to D = 32,768, 4 above). Gathers are counted per edge,
as if no cache held a row: on graphs whose features fit a cache the rate that follows from these
bytes is the caches', and may pass that of the memory. Outputs are counted once.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes of one neighbour id, while N stays below 2^31.
INDEX_BYTES = 4
#: Bytes of one row offset.
OFFSET_BYTES = 8
#: Sums are kept in float32, also for 16-bit values.
SUM_BYTES = 4


@dataclass(frozen=True)
class Size:
    """The sizes that decide an operation's traffic.

    Attributes:
        num_src: N, rows of the features.
        num_dst: M, rows of the aggregate.
        num_edges: E.
        width: D.
        k: Kept entries per row; D for a dense operation.
        value_bytes: Bytes of one value.
        weighted: Whether every edge carries a weight that must be read.
    """

    num_src: int
    num_dst: int
    num_edges: int
    width: int
    k: int
    value_bytes: int = 4
    weighted: bool = False


@dataclass(frozen=True)
class Traffic:
    """Bytes of one call.

    Attributes:
        reads: Bytes read.
        writes: Bytes stored.
        atomics: Bytes added in place by more than one writer.
    """

    reads: int
    writes: int
    atomics: int = 0

    @property
    def total(self) -> int:
        """Reads, writes and atomics together."""
        return self.reads + self.writes + self.atomics

    def gbps(self, ms: float) -> float:
        """Returns the rate in GB/s (1e9 bytes) of a call that took ``ms`` milliseconds."""
        return self.total / ms / 1e6


def column_bytes(width: int) -> int:
    """Returns the bytes of one column id: 1 to D = 256, 2 to D = 32,768, 4 above."""
    if width <= 256:
        return 1
    return 2 if width <= 32768 else 4


def structure_bytes(size: Size, rows: int) -> int:
    """Returns what reading the graph costs: ``4 E + 8 (rows + 1)``, and ``4 E`` for weights."""
    per_edge = INDEX_BYTES + (SUM_BYTES if size.weighted else 0)
    return per_edge * size.num_edges + OFFSET_BYTES * (rows + 1)


def spmm(size: Size) -> Traffic:
    """Dense aggregation, forward or transposed: reads ``v D E`` and the graph, writes ``v D M``.

    Example:
        >>> spmm(Size(232_965, 232_965, 114_615_891, 256, 256)).reads // 10**9
        117
    """
    reads = size.value_bytes * size.width * size.num_edges + structure_bytes(size, size.num_dst)
    return Traffic(reads, size.value_bytes * size.width * size.num_dst)


def spgemm(size: Size) -> Traffic:
    """CBSR forward: reads ``(v + c) k E`` and the graph, writes ``v D M``.

    Example:
        >>> spgemm(Size(232_965, 232_965, 114_615_891, 256, 32)).reads // 10**9
        18
    """
    entry = size.value_bytes + column_bytes(size.width)
    reads = entry * size.k * size.num_edges + structure_bytes(size, size.num_dst)
    return Traffic(reads, size.value_bytes * size.width * size.num_dst)


def sspmm(size: Size) -> Traffic:
    """CBSR backward by scatter: each target's gradient row once, columns of each edge's source.

    Reads ``v D M + c k E`` and the graph, adds ``4 k E`` bytes into the sums of the sources, writes
    ``v k N``.
    """
    reads = (
        size.value_bytes * size.width * size.num_dst
        + column_bytes(size.width) * size.k * size.num_edges
        + structure_bytes(size, size.num_dst)
    )
    writes = size.value_bytes * size.k * size.num_src
    return Traffic(reads, writes, SUM_BYTES * size.k * size.num_edges)


def maxk(size: Size) -> Traffic:
    """Selection: reads ``v D N`` once, writes ``(v + c) k N``."""
    entry = size.value_bytes + column_bytes(size.width)
    return Traffic(
        size.value_bytes * size.width * size.num_src,
        entry * size.k * size.num_src,
    )


def topk(size: Size) -> Traffic:
    """``torch.topk``: reads ``v D N``, writes a value and a 64-bit index for each kept entry."""
    return Traffic(
        size.value_bytes * size.width * size.num_src,
        (size.value_bytes + 8) * size.k * size.num_src,
    )
