"""Edges grouped by panels of sources, so that the sums that a panel's edges add to stay in the L2.

Adding to rows that the L2 does not hold costs a read and a write of device memory an edge; taking
the targets once a panel costs only that their gradient is read once a panel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from maxk.graph import kept
from maxk.graph.adjacency import Adjacency
from maxk.graph.csr import expand
from maxk.graph.schedule import Schedule, build_schedule


@dataclass(frozen=True)
class Panels:
    """The edges of a graph, by panel and, inside a panel, in CSR order.

    Attributes:
        indices: int32 [E], source of each edge.
        edges: [E], CSR position of each edge.
        schedule: pieces of rows ``panel * M + target``.
    """

    indices: Tensor
    edges: Tensor
    schedule: Schedule


# Node ids of the edges -> number of panels -> the panels.
_cache: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def panels_of(adjacency: Adjacency, count: int) -> Panels:
    """The edges in ``count`` panels of equally many sources; built once a graph."""
    panels = _cache.setdefault(adjacency.indices, {})
    if count not in panels:
        panels[count] = kept.make(lambda: _build(adjacency, count))
    found: Panels = panels[count]
    return found


def _build(adjacency: Adjacency, count: int) -> Panels:
    rows, edges = adjacency.num_dst, adjacency.num_edges
    size = -(-adjacency.num_src // count)
    panel = torch.div(adjacency.indices, size, rounding_mode="floor").to(torch.uint8)
    panel, order = torch.sort(panel, stable=True)
    row = panel.long() * rows + expand(adjacency.indptr, edges, torch.int64)[order]
    bounds = torch.arange(count * rows + 1, device=row.device)
    indptr = torch.searchsorted(row, bounds)
    ids = torch.int32 if edges < 2**31 else torch.int64
    return Panels(adjacency.indices[order], order.to(ids), build_schedule(indptr, edges))
