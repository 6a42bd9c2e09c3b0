"""Rows of a CSR matrix cut into pieces of work for the warps of a GPU.

A row of at most :data:`PIECE_EDGES` edges is one piece and its result is stored whole. A longer row
is cut into pieces of nearly equal length; their partial sums go to numbered slots of a workspace
and are added in the order of the edges, so that results repeat bit by bit.

All sizes are bounds that follow from the shapes alone: nothing is copied to the host, and
``torch.compile`` can trace the construction. Unused entries carry row -1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from maxk.graph.kept import make

#: Longest piece. Fixed-point sums rely on it: 512 values of 23 bits stay inside 32. Pieces of 256
#: double the partial sums of a graph with hundreds of edges a row, for no better balance.
PIECE_EDGES = 512


@dataclass(frozen=True)
class Schedule:
    """The pieces of one CSR matrix.

    Attributes:
        pieces: int32 [M + E // C, 4]: row; low 31 bits of the first edge; its high bits << 16 | the
            number of edges; slot of the partial sum, or -1 where the piece is a whole row.
        long_rows: int32 [E // C, 4]: row, first slot, number of slots, 0.
    """

    pieces: Tensor
    long_rows: Tensor

    @property
    def num_pieces(self) -> int:
        """Entries of ``pieces``."""
        return self.pieces.shape[0]

    @property
    def num_long_rows(self) -> int:
        """Entries of ``long_rows``."""
        return self.long_rows.shape[0]

    @property
    def num_slots(self) -> int:
        """Bound on the slots: a row of d > C edges has ceil(d / C) <= (d - 1) // C + 1 of them."""
        return 2 * self.num_long_rows

    def tensors(self) -> list[Tensor]:
        """The schedule as a registered operation takes it."""
        return [self.pieces, self.long_rows]

    @staticmethod
    def from_tensors(tensors: list[Tensor]) -> Schedule:
        """Inverse of :meth:`tensors`."""
        pieces, long_rows = tensors
        return Schedule(pieces, long_rows)


# Row pointers -> their schedule.
_cache: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def schedule_of(indptr: Tensor, num_edges: int) -> Schedule:
    """The schedule of a CSR matrix, built once in the life of its row pointers.

    Registered operations receive a graph as plain tensors and would build it anew each call.
    """
    if indptr not in _cache:
        _cache[indptr] = make(lambda: build_schedule(indptr, num_edges))
    found: Schedule = _cache[indptr]
    return found


def build_schedule(indptr: Tensor, num_edges: int) -> Schedule:
    """Cuts the rows of a CSR matrix into pieces, on its device.

    Args:
        indptr: int64 [M + 1].
        num_edges: E, the last entry of ``indptr``.
    """
    num_rows = indptr.shape[0] - 1
    num_long = num_edges // PIECE_EDGES
    device = indptr.device
    if num_rows == 0:
        empty = torch.empty(0, 4, dtype=torch.int32, device=device)
        return Schedule(empty, empty)
    degree = indptr.diff()
    count = ((degree + (PIECE_EDGES - 1)) // PIECE_EDGES).clamp(min=1)
    ends = count.cumsum(0)
    is_long = count > 1
    slots = torch.where(is_long, count, 0)
    first_slot = slots.cumsum(0) - slots

    piece = torch.arange(num_rows + num_long, device=device)
    row = torch.searchsorted(ends, piece, right=True)
    used = row < num_rows
    row = row.clamp(max=num_rows - 1)
    part = piece - (ends - count)[row]
    length = ((degree + count - 1) // count)[row]
    offset = torch.minimum(part * length, degree[row])
    length = torch.minimum(length, degree[row] - offset)
    start = indptr[:-1][row] + offset
    slot = torch.where(is_long[row], first_slot[row] + part, -1)
    pieces = torch.stack(
        [torch.where(used, row, -1), start & 0x7FFFFFFF, (start >> 31 << 16) | length, slot], dim=1
    )

    ranks = is_long.cumsum(0)
    row = torch.searchsorted(ranks, torch.arange(1, num_long + 1, device=device))
    used = row < num_rows
    row = row.clamp(max=num_rows - 1)
    long_rows = torch.stack(
        [torch.where(used, row, -1), first_slot[row], slots[row], torch.zeros_like(row)], dim=1
    )
    return Schedule(pieces.to(torch.int32), long_rows.to(torch.int32))
