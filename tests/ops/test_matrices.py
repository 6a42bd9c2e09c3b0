"""The sparse matrices that a graph keeps are few, however many scales come by."""

from __future__ import annotations

import gc
import weakref

import torch

from maxk.ops.spmm.matrices import MOST, Matrices


class Matrix:
    pass


def test_a_thousand_scales_leave_a_bounded_number() -> None:
    kept, alive = Matrices(), weakref.WeakSet()  # type: ignore[var-annotated]
    for _ in range(1000):
        matrix = kept.get("forward", (torch.ones(3), None), Matrix)
        alive.add(matrix)
    del matrix
    gc.collect()
    assert len(kept) == len(alive) == MOST


def test_what_is_used_stays_and_is_made_once() -> None:
    kept, scale, made = Matrices(most=2), torch.ones(3), []

    def make() -> Matrix:
        made.append(Matrix())
        return made[-1]

    first = kept.get("forward", (scale, None), make)
    for _ in range(20):
        kept.get("forward", (torch.ones(3), None), Matrix)
        assert kept.get("forward", (scale, None), make) is first
    assert made == [first]


def test_keys_and_scales_tell_matrices_apart() -> None:
    kept, a, b = Matrices(), torch.ones(3), torch.ones(3)
    keys = [
        ("forward", (a, None)), ("forward", (b, None)), ("forward", (None, a)), ("back", (a, None)),
        ("forward", (None, None)),
    ]  # fmt: skip
    found = [kept.get(key, scales, Matrix) for key, scales in keys]
    assert len(set(found)) == len(keys)
    assert [kept.get(key, scales, Matrix) for key, scales in keys] == found


def test_what_a_cuda_graph_reads_is_never_dropped() -> None:
    kept, scale = Matrices(most=2), torch.ones(3)
    before = kept.get("forward", (scale, None), Matrix)
    assert kept.get("forward", (scale, None), Matrix, pin=True) is before
    for _ in range(20):
        kept.get("forward", (torch.ones(3), None), Matrix)
    assert kept.get("forward", (scale, None), Matrix) is before
    assert len(kept) == 3
