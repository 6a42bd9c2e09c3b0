"""MaxK on the CPU: bisection on order-preserving integer keys, then branch-free compaction.

The bits of a float, taken as an integer, sort like the float once negative numbers are turned
round. A row's k-th largest key is found by halving [min, max] and counting, which vectorises, and
from a guess, the row before; most rows end as soon as exactly k keys reach the middle. Rows that
end in ties take their lowest columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from maxk.cbsr import column_dtype
from maxk.device.cpu import equal_rows, helper, kernel, reinterpret, threads, trailing_zeros

# Halvings of the value range before the key range is halved instead.
LINEAR_STEPS = 12

KEY_DTYPES = {torch.float32: torch.int32, torch.float64: torch.int64}


def select(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest entries of every row: values [N, k] and columns [N, k], columns ascending."""
    threads()
    wide = x if x.dtype in KEY_DTYPES else x.float()
    rows, width = x.shape
    values = torch.empty(rows, k, dtype=wide.dtype, device="cpu")
    columns = torch.empty(rows, k, dtype=column_dtype(width), device="cpu")
    bits = wide.view(KEY_DTYPES[wide.dtype]).numpy()
    largest = np.iinfo(bits.dtype).max
    infinity = (
        torch.tensor(float("inf"), dtype=wide.dtype, device="cpu")
        .view(KEY_DTYPES[wide.dtype])
        .item()
    )
    _select(
        wide.numpy(), bits, bits.dtype.type(largest), bits.dtype.type(infinity),
        values.numpy(), columns.numpy(), equal_rows(rows),
    )  # fmt: skip
    return values.to(x.dtype), columns


def scatter(values: Tensor, columns: Tensor, width: int) -> Tensor:
    """Dense [N, D] with ``values`` at ``columns`` and 0 elsewhere."""
    threads()
    wide = values if values.dtype in KEY_DTYPES else values.float()
    dense = torch.empty(values.shape[0], width, dtype=wide.dtype, device="cpu")
    _scatter(wide.numpy(), columns.numpy(), dense.numpy(), equal_rows(values.shape[0]))
    return dense.to(values.dtype)


def add(y: Tensor, values: Tensor, columns: Tensor, scale: Tensor) -> None:
    """Adds ``scale`` [1] times the entries to y [N, D], in place."""
    threads()
    wide = y if y.dtype in KEY_DTYPES else y.float()
    entries = (values * scale).to(wide.dtype)
    _add(entries.numpy(), columns.numpy(), wide.numpy(), equal_rows(y.shape[0]))
    if wide is not y:
        y.copy_(wide)


@kernel
def _select(
    x: Any, bits: Any, largest: Any, infinity: Any, values: Any, columns: Any, pieces: Any
) -> None:
    width = x.shape[1]
    k = values.shape[1]
    words = (width + 63) // 64
    smallest = bits.dtype.type(-largest - 1)
    half = x.dtype.type(0.5)
    for piece in prange(pieces.shape[0] - 1):
        # Padding ranks below every key of a row, so that whole words of 64 can be compared.
        keys = np.full(words * 64, smallest, bits.dtype)
        guess = bits.dtype.type(0)
        for i in range(pieces[piece], pieces[piece + 1]):
            low = largest
            high = smallest
            for c in range(width):
                raw = bits[i, c]
                key = raw
                if raw < 0:
                    key = bits.dtype.type(raw ^ largest)
                if key == -1:  # -0.0 equals 0.0
                    key = bits.dtype.type(0)
                if (raw & largest) > infinity:  # NaN of either sign ranks first
                    key = largest
                keys[c] = key
                low = bits.dtype.type(min(low, key))
                high = bits.dtype.type(max(high, key))
            # At least k keys reach `low`, fewer than k exceed `high`. Rows resemble each other, so
            # the threshold of the row before is the first guess.
            count = width
            step = 0
            while low < high and count != k:
                middle = guess
                if step > 0 or middle <= low or middle > high:
                    middle = bits.dtype.type(_middle(low, high, largest, infinity, step, half))
                step += 1
                reached = np.int32(0)
                for c in range(words * 64):
                    reached += np.int32(keys[c] >= middle)
                if reached >= k:
                    low = middle
                    count = reached
                else:
                    high = bits.dtype.type(middle - 1)
            guess = low
            row = x[i]
            kept = values[i]
            places = columns[i]
            p = np.uint64(0)
            if count == k:
                for word in range(words):
                    mask = np.uint64(0)
                    for b in range(64):
                        mask |= np.uint64(keys[word * 64 + b] >= low) << np.uint64(b)
                    while mask != 0:
                        c = np.uint64(word * 64 + trailing_zeros(mask))
                        mask &= mask - np.uint64(1)
                        kept[p] = row[c]
                        places[p] = c
                        p += np.uint64(1)
            else:
                above = 0
                for c in range(width):
                    above += keys[c] > low
                ties = k - above
                for c in range(width):
                    tied = keys[c] == low and ties > 0
                    if tied or keys[c] > low:
                        ties -= tied
                        kept[p] = row[c]
                        places[p] = c
                        p += np.uint64(1)


@helper
def _middle(low: Any, high: Any, largest: Any, infinity: Any, step: Any, half: Any) -> Any:
    """A key in (low, high]: halves the values while that is quick, the keys after that.

    Halving values ends in about eight steps on bell-shaped rows, where halving keys spends as many
    on the exponents next to zero; halving keys ends in 32 steps (64 for float64) on any row.
    """
    if step < LINEAR_STEPS and low > -infinity and high < infinity:
        bottom = reinterpret(low ^ largest if low < 0 else low, half)
        top = reinterpret(high ^ largest if high < 0 else high, half)
        raw = reinterpret(half * bottom + half * top, low)
        middle = raw ^ largest if raw < 0 else raw
        if low < middle <= high:
            return middle
    # The mean without the sum, which could overflow, rounded up so that `low` moves.
    return (low & high) + ((low ^ high) >> 1) + ((low ^ high) & 1)


@kernel
def _scatter(values: Any, columns: Any, dense: Any, pieces: Any) -> None:
    width = dense.shape[1]
    k = np.uint64(values.shape[1])
    for piece in prange(pieces.shape[0] - 1):
        for i in range(pieces[piece], pieces[piece + 1]):
            for c in range(width):
                dense[i, c] = 0
            for j in range(k):
                dense[i, columns[i, j]] = values[i, j]


@kernel
def _add(values: Any, columns: Any, dense: Any, pieces: Any) -> None:
    k = np.uint64(values.shape[1])
    for piece in prange(pieces.shape[0] - 1):
        for i in range(pieces[piece], pieces[piece + 1]):
            for j in range(k):
                dense[i, columns[i, j]] += values[i, j]
