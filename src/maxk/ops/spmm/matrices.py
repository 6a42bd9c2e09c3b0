"""The sparse matrices of a graph that SpMM keeps: a bounded number, the least used goes first.

A matrix belongs to a pair of scales. Mean and gcn have one pair each as long as nothing changes,
but a caller may bring other scales with every step.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from maxk.graph import kept

#: Both directions of sum, mean and gcn, and two more.
MOST = 8


class Matrices:
    """Matrices by key and by the identity of the scales that they were made with.

    Args:
        most: how many are kept.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[Any, tuple[Any, ...]]] = OrderedDict()
        self._pinned: dict[Hashable, tuple[Any, tuple[Any, ...]]] = {}

    def __len__(self) -> int:
        return len(self._kept) + len(self._pinned)

    def get(
        self, key: Hashable, scales: tuple[Any, ...], make: Callable[[], Any], *, pin: bool = False
    ) -> Any:
        """The matrix of a key and scales, made on first sight.

        Args:
            key: what else the matrix depends on.
            scales: kept with the matrix, so that their identities stay theirs.
            make: makes the matrix.
            pin: keep it as long as the graph: a recorded CUDA graph reads it at every replay.
        """
        key = (key, *map(id, scales))
        with self._lock:
            entry = self._pinned.get(key) or self._kept.pop(key, None)
            if entry is None:
                entry = (kept.make(make), scales)
            if pin or key in self._pinned:
                self._pinned[key] = entry
            else:
                self._kept[key] = entry
                while len(self._kept) > self.most:
                    self._kept.popitem(last=False)
        return entry[0]
