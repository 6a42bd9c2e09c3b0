"""The pieces cover every edge once, in order, whatever the degrees."""

from __future__ import annotations

import pytest
import torch

from maxk.graph.schedule import PIECE_EDGES, Schedule, build_schedule, schedule_of

C = PIECE_EDGES
DEGREES = [
    [], [0], [0, 0, 0], [1], [C], [C + 1], [C - 1, C, C + 1, 0, 2 * C, 2 * C + 1, 3],
    [7] * 1000, [50 * C + 3], [0, 0, 9 * C, 0],
]  # fmt: skip


def indptr_of(degrees: list[int]) -> torch.Tensor:
    return torch.tensor([0, *degrees]).cumsum(0)


@pytest.mark.parametrize("degrees", DEGREES, ids=lambda d: f"{len(d)}-{sum(d)}")
def test_pieces_cover_the_edges(degrees: list[int]) -> None:
    indptr = indptr_of(degrees)
    schedule = build_schedule(indptr, sum(degrees))
    assert schedule.num_pieces == (len(degrees) + sum(degrees) // C if degrees else 0)
    edge, rows, slots = 0, [], []
    for row, low, packed, slot in schedule.pieces.tolist():
        if row < 0:
            continue
        start, length = (packed >> 16) << 31 | low, packed & 0xFFFF
        assert length <= C
        assert start == edge
        assert int(indptr[row]) <= start
        assert start + length <= int(indptr[row + 1])
        assert (slot >= 0) == (degrees[row] > C)
        edge += length
        rows.append(row)
        slots += [(row, slot)] if slot >= 0 else []
    assert edge == sum(degrees)
    assert sorted(set(rows)) == list(range(len(degrees)))
    assert [slot for _, slot in slots] == list(range(len(slots)))
    assert len(slots) <= schedule.num_slots
    folded = [
        (row, first + i)
        for row, first, count, _ in schedule.long_rows.tolist() if row >= 0
        for i in range(count)
    ]  # fmt: skip
    assert folded == slots


def test_more_than_31_bits_of_edges() -> None:
    """Only the row pointer is looked at: 3 rows whose edges lie past 2^31 and 2^32."""
    base = 2**32 + 5
    indptr = torch.tensor([base, base + 3, base + 3, base + 10])
    pieces = build_schedule(indptr, 10).pieces.tolist()
    starts = [(packed >> 16) << 31 | low for _, low, packed, _ in pieces]
    assert starts == [base, base + 3, base + 3]


def test_through_tensors() -> None:
    schedule = build_schedule(indptr_of([3, 2000]), 2003)
    again = Schedule.from_tensors(schedule.tensors())
    assert torch.equal(again.pieces, schedule.pieces)
    assert again.num_slots == schedule.num_slots


def test_built_once_for_each_row_pointer() -> None:
    indptr = indptr_of([3, 2000])
    first = schedule_of(indptr, 2003)
    assert schedule_of(indptr, 2003) is first
    assert schedule_of(indptr.clone(), 2003) is not first
