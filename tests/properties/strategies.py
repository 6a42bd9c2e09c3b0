"""Random graphs and features that bite, small enough to be read when a test fails.

Features are whole numbers of at most 8 in size: their sums are exact in float32 and float64 in any
order, so implementations must agree to the bit, and rows are full of ties.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st

import maxk

WIDTHS = [1, 2, 3, 5, 31, 33, 64, 100]
LAYOUTS = ["contiguous", "transposed", "every-other", "offset"]


@dataclass(frozen=True)
class Edges:
    """A list of edges (source, target) on num_src and num_dst nodes, with weights or without."""

    pairs: tuple[tuple[int, int], ...]
    counts: tuple[int, int]
    weight: tuple[int, ...] | None

    def index(self) -> torch.Tensor:
        return torch.tensor(self.pairs, dtype=torch.int64).reshape(-1, 2).t()

    def values(self, dtype: torch.dtype = torch.float64) -> torch.Tensor | None:
        return None if self.weight is None else torch.tensor(self.weight, dtype=dtype)

    def graph(self, device="cpu", dtype: torch.dtype = torch.float64) -> maxk.Graph:
        return maxk.Graph.from_edge_index(self.index(), self.counts, self.values(dtype)).to(device)

    def matrix(self) -> np.ndarray:
        """A[target, source], parallel edges added up."""
        matrix = np.zeros(self.counts[::-1])
        for edge, (source, target) in enumerate(self.pairs):
            matrix[target, source] += 1 if self.weight is None else self.weight[edge]
        return matrix


@st.composite
def edges(draw, *, square: bool = False, weighted: bool | None = None) -> Edges:
    """Empty rows, hubs, parallel edges, self-loops, rectangles, disconnected parts, no edges."""
    num_src = draw(st.integers(0, 12))
    num_dst = num_src if square else draw(st.integers(0, 12))
    if num_src == 0 or num_dst == 0:
        pairs = []
    else:
        # Few distinct ends make parallel edges and empty rows; one fixed end makes a hub.
        source = st.integers(0, draw(st.integers(0, num_src - 1)))
        target = st.integers(0, draw(st.integers(0, num_dst - 1)))
        pairs = draw(st.lists(st.tuples(source, target), max_size=40))
        hub = draw(st.sampled_from(["none", "in", "out", "loops"]))
        if hub == "in":
            end = draw(st.integers(0, num_dst - 1))
            pairs += [(s, end) for s in range(num_src)] * 2
        elif hub == "out":
            end = draw(st.integers(0, num_src - 1))
            pairs += [(end, t) for t in range(num_dst)] * 2
        elif hub == "loops":
            pairs += [(n, n) for n in range(0, min(num_src, num_dst), 2)]
    if draw(st.booleans()) if weighted is None else weighted:
        numbers = st.integers(-4, 4)
        weight = tuple(draw(st.lists(numbers, min_size=len(pairs), max_size=len(pairs))))
    else:
        weight = None
    return Edges(tuple(pairs), (num_src, num_dst), weight)


@dataclass(frozen=True)
class Features:
    """Whole numbers [rows, width], drawn from a seed, as a view of the named layout."""

    width: int
    k: int
    layout: str
    seed: int

    def dense(self, rows: int, dtype: torch.dtype = torch.float64, device="cpu") -> torch.Tensor:
        g = torch.Generator().manual_seed(self.seed)
        x = torch.randint(-8, 9, (rows, self.width), generator=g).to(dtype).to(device)
        return strided(x, self.layout)

    def distinct(self, rows: int) -> torch.Tensor:
        """Rows without ties, whose gaps are wider than a finite difference."""
        g = torch.Generator().manual_seed(self.seed)
        order = torch.rand(rows, self.width, generator=g, dtype=torch.float64).argsort(dim=1)
        return order.double() / self.width - 0.4


def strided(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The same numbers in other places in memory; what lies between is NaN."""
    rows, width = x.shape
    if layout == "contiguous":
        return x
    if layout == "transposed":
        return x.t().contiguous().t()
    if layout == "every-other":
        view = x.new_full((rows, 2 * width + 1), float("nan"))[:, 1::2]
    else:
        view = x.new_full((rows + 2, width + 3), float("nan"))[2:, 3:]
    view.copy_(x)
    return view


@st.composite
def features(draw) -> Features:
    width = draw(st.sampled_from(WIDTHS))
    k = draw(st.one_of(st.sampled_from([1, width]), st.integers(1, width)))
    return Features(width, k, draw(st.sampled_from(LAYOUTS)), draw(st.integers(0, 2**16)))
