"""MaxK on the CPU: bisection on order-preserving integer keys, then branch-free compaction.

The bits of a float, taken as an integer, sort like the float once negative numbers are turned
round. A row's k-th largest key is found by halving [min, max] and counting, which vectorises; most
rows end as soon as exactly k keys reach the middle. Rows that end in ties take their lowest columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from maxk.cbsr import column_dtype
from maxk.device.cpu import equal_rows, kernel, threads

KEY_DTYPES = {torch.float32: torch.int32, torch.float64: torch.int64}


def select(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest entries of every row: values [N, k] and columns [N, k], columns ascending."""
    threads()
    wide = x if x.dtype in KEY_DTYPES else x.float()
    rows, width = x.shape
    values = torch.empty(rows, k, dtype=wide.dtype)
    columns = torch.empty(rows, k, dtype=column_dtype(width))
    bits = wide.view(KEY_DTYPES[wide.dtype]).numpy()
    largest = np.iinfo(bits.dtype).max
    infinity = torch.tensor(float("inf"), dtype=wide.dtype).view(KEY_DTYPES[wide.dtype]).item()
    _select(
        wide.numpy(), bits, bits.dtype.type(largest), bits.dtype.type(infinity),
        values.numpy(), columns.numpy(), equal_rows(rows),
    )  # fmt: skip
    return values.to(x.dtype), columns


def scatter(values: Tensor, columns: Tensor, width: int) -> Tensor:
    """Dense [N, D] with ``values`` at ``columns`` and 0 elsewhere."""
    threads()
    wide = values if values.dtype in KEY_DTYPES else values.float()
    dense = torch.empty(values.shape[0], width, dtype=wide.dtype)
    _scatter(wide.numpy(), columns.numpy(), dense.numpy(), equal_rows(values.shape[0]))
    return dense.to(values.dtype)


@kernel
def _select(
    x: Any, bits: Any, largest: Any, infinity: Any, values: Any, columns: Any, pieces: Any
) -> None:
    width = x.shape[1]
    k = values.shape[1]
    for piece in prange(pieces.shape[0] - 1):
        keys = np.empty(width, bits.dtype)
        # One slot more than a row: the entry that is not kept lands there and is overwritten.
        kept = np.empty(width + 1, x.dtype)
        places = np.empty(width + 1, columns.dtype)
        for i in range(pieces[piece], pieces[piece + 1]):
            low = largest
            high = -largest - 1
            for c in range(width):
                raw = bits[i, c]
                key = raw
                if raw < 0:
                    key = raw ^ largest
                if key == -1:  # -0.0 equals 0.0
                    key = bits.dtype.type(0)
                if (raw & largest) > infinity:  # NaN of either sign ranks first
                    key = largest
                keys[c] = key
                low = min(low, key)
                high = max(high, key)
            # At least k keys reach `low`, fewer than k exceed `high`. The middle is taken
            # without the sum, which could overflow.
            count = width
            while low < high and count != k:
                middle = (low & high) + ((low ^ high) >> 1)
                middle += bits.dtype.type((low ^ high) & 1)  # round up, so that `low` moves
                reached = np.int32(0)
                for c in range(width):
                    reached += np.int32(keys[c] >= middle)
                if reached >= k:
                    low = middle
                    count = reached
                else:
                    high = middle - bits.dtype.type(1)
            p = 0
            if count == k:
                for c in range(width):
                    kept[p] = x[i, c]
                    places[p] = c
                    p += np.int64(keys[c] >= low)
            else:
                above = 0
                for c in range(width):
                    above += keys[c] > low
                ties = k - above
                for c in range(width):
                    tied = (keys[c] == low) & (ties > 0)
                    kept[p] = x[i, c]
                    places[p] = c
                    ties -= np.int64(tied)
                    p += np.int64((keys[c] > low) | tied)
            for j in range(k):
                values[i, j] = kept[j]
                columns[i, j] = places[j]


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
