"""Compressed sparse rows: from edges, checked, with the transpose filled on demand.

Rows are targets, columns are sources: ``indices[indptr[t]:indptr[t + 1]]`` lists the sources of the
edges that end in node ``t``, in the order in which the caller gave them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from maxk.graph.kept import make
from maxk.graph.schedule import Schedule, schedule_of

INT32_MAX = 2**31 - 1
INDEX_DTYPES = (torch.int64, torch.int32, torch.int16, torch.uint8)


@dataclass(frozen=True)
class Transpose:
    """The same edges in source order.

    Attributes:
        indptr: int64 [N + 1].
        indices: [E] target of each edge.
        edges: int64 [E] position of each edge in the forward CSR.
    """

    indptr: Tensor
    indices: Tensor
    edges: Tensor


class CSR:
    """Rows of one sparse matrix on one device; never changed after it is made.

    Attributes:
        indptr: int64 [M + 1], row boundaries.
        indices: int32 (int64 from 2^31 nodes on) [E], source of each edge.
        num_src: number of columns, N.
        order: int64 [E] position of each CSR entry in the caller's edge list, or None where both
            orders agree or nobody needs it.
        filled: the rows with the missing self-loops added (None where none is missing), without
            and with an order kept; whoever makes them puts them here.
    """

    __slots__ = ("_transpose", "filled", "indices", "indptr", "num_src", "order")

    def __init__(
        self,
        indptr: Tensor,
        indices: Tensor,
        num_src: int,
        order: Tensor | None = None,
        transpose: Transpose | None = None,
    ) -> None:
        self.indptr = indptr
        self.indices = indices
        self.num_src = num_src
        self.order = order
        self._transpose = transpose
        self.filled: dict[bool, CSR | None] = {}

    @property
    def num_dst(self) -> int:
        """Number of rows, M."""
        return self.indptr.shape[0] - 1

    @property
    def num_edges(self) -> int:
        """Number of stored entries, E."""
        return self.indices.shape[0]

    @property
    def device(self) -> torch.device:
        """Where the arrays live."""
        return self.indptr.device

    def rows(self) -> Tensor:
        """Target of each edge in CSR order, same dtype as ``indices``."""
        return expand(self.indptr, self.num_edges, self.indices.dtype)

    @property
    def transpose(self) -> Transpose:
        """The edges in source order; built on first use."""
        if self._transpose is None:
            self._transpose = make(self._make_transpose)
        return self._transpose

    def _make_transpose(self) -> Transpose:
        indptr, edges = group(self.indices, self.num_src)
        return Transpose(indptr, self.rows()[edges], edges)

    def reversed(self) -> CSR:
        """The same edges with rows and columns exchanged; shares all arrays but one."""
        t = self.transpose
        order = t.edges if self.order is None else make(lambda: self._order_of(t.edges))
        back = Transpose(self.indptr, self.indices, make(lambda: torch.argsort(t.edges)))
        return CSR(t.indptr, t.indices, self.num_dst, order=order, transpose=back)

    def _order_of(self, entries: Tensor) -> Tensor:
        assert self.order is not None
        return self.order[entries]

    @property
    def has_transpose(self) -> bool:
        """Whether the transpose is already there."""
        return self._transpose is not None

    @property
    def schedule(self) -> Schedule:
        """Pieces of work for the rows on a GPU; built on first use."""
        return schedule_of(self.indptr, self.num_edges)

    @property
    def t_schedule(self) -> Schedule:
        """Pieces of work for the rows of the transpose on a GPU; built on first use."""
        return schedule_of(self.transpose.indptr, self.num_edges)

    def to(self, device: torch.device) -> CSR:
        """The same rows on another device, with the transpose where it is already there."""
        return self if device == self.device else make(lambda: self._moved(device))

    def _moved(self, device: torch.device) -> CSR:
        order = None if self.order is None else self.order.to(device)
        t = self._transpose
        moved = None
        if t is not None:
            moved = Transpose(t.indptr.to(device), t.indices.to(device), t.edges.to(device))
        return CSR(
            self.indptr.to(device), self.indices.to(device), self.num_src, order, transpose=moved
        )


def expand(indptr: Tensor, num_edges: int, dtype: torch.dtype) -> Tensor:
    """Row number of each entry, [E]."""
    rows = torch.arange(indptr.shape[0] - 1, device=indptr.device, dtype=dtype)
    return torch.repeat_interleave(rows, indptr.diff(), output_size=num_edges)


def group(keys: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
    """Sorts entries by key, stable.

    Args:
        keys: integer [E] in [0, num_groups).
        num_groups: number of groups.

    Returns:
        int64 [num_groups + 1] boundaries, and int64 [E] the entries in sorted order.
    """
    ordered, positions = torch.sort(keys, stable=True)
    bounds = torch.arange(num_groups + 1, device=keys.device, dtype=keys.dtype)
    return torch.searchsorted(ordered, bounds), positions


def index_dtype(num_src: int, num_dst: int) -> torch.dtype:
    """int32 while every node id fits, int64 beyond."""
    return torch.int32 if max(num_src, num_dst) <= INT32_MAX else torch.int64


def from_edges(edge_index: Tensor, num_src: int, num_dst: int, *, keep_order: bool) -> CSR:
    """CSR of checked edges ``[2, E]`` (source row first)."""
    dtype = index_dtype(num_src, num_dst)

    def build() -> CSR:
        source, target = edge_index[0].to(dtype), edge_index[1].to(dtype)
        indptr, order = group(target, num_dst)
        return CSR(indptr, source[order].contiguous(), num_src, order if keep_order else None)

    return make(build)


def from_arrays(
    indptr: Tensor, indices: Tensor, num_src: int | None = None, order: Tensor | None = None
) -> CSR:
    """CSR of arrays of any integer dtype, checked and copied.

    Args:
        indptr: [M + 1].
        indices: [E].
        num_src: N; by default M, or one more than the largest id where that is larger.
        order: int64 [E], checked and not copied; see :class:`CSR`.

    Raises:
        TypeError: an array has the wrong dtype.
        ValueError: the arrays disagree, or an id lies outside the graph.
    """
    indptr, indices = check_index(indptr, "indptr"), check_index(indices, "indices")
    if indices.dim() != 1:
        raise ValueError(f"indices must have shape [E], got {list(indices.shape)}")
    if indptr.device != indices.device:
        raise ValueError(
            "indptr and indices must be on one device, got "
            f"{indptr.device} and {indices.device}; move one of them"
        )
    check_indptr(indptr, indices.shape[0])
    num_dst = indptr.shape[0] - 1
    if num_src is None:
        num_src = max(num_dst, int(indices.max()) + 1 if indices.numel() else 0)
    check_ids(indices, num_src, "indices", "source")
    dtype = index_dtype(num_src, num_dst)
    arrays = make(lambda: (_copy(indptr, torch.int64), _copy(indices, dtype)))
    return CSR(*arrays, num_src, order)


def _copy(ids: Tensor, dtype: torch.dtype) -> Tensor:
    return ids.to(dtype, copy=True, memory_format=torch.contiguous_format)


def check_index(ids: Tensor, name: str) -> Tensor:
    """Node ids or row pointers as int64 or int32.

    Raises:
        TypeError: they are no tensor of an integer dtype.
    """
    if not isinstance(ids, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor of integers, got {type(ids).__name__}")
    if ids.dtype not in INDEX_DTYPES:
        raise TypeError(f"{name} must hold int64 or int32 ids, got {ids.dtype}; call .long() first")
    # A narrower dtype cannot be compared with a number of nodes that it cannot hold.
    return ids if ids.dtype in (torch.int64, torch.int32) else ids.long()


def check_ids(ids: Tensor, count: int, name: str, what: str) -> None:
    """Raises ValueError naming the first id outside [0, count), its position and the range."""
    if ids.numel() == 0:
        return
    low, high = torch.aminmax(ids)
    if int(low) >= 0 and int(high) < count:
        return
    position = int(((ids < 0) | (ids >= count)).nonzero()[0])
    raise ValueError(
        f"{name} holds the {what} id {int(ids[position])} at position {position}, but the graph "
        f"has {count} {what} nodes (ids 0..{count - 1}); pass num_nodes or mend the edge"
    )


def check_indptr(indptr: Tensor, num_edges: int) -> None:
    """Raises ValueError where ``indptr`` is no valid row pointer for ``num_edges`` entries."""
    if indptr.dim() != 1 or indptr.numel() == 0:
        raise ValueError(f"indptr must have shape [M + 1], got {list(indptr.shape)}")
    first, last = int(indptr[0]), int(indptr[-1])
    if first != 0:
        raise ValueError(f"indptr must start at 0, got {first}")
    if last != num_edges:
        raise ValueError(
            f"indptr must end at the number of entries in indices ({num_edges}), got {last}"
        )
    steps = indptr.diff()
    if steps.numel() and int(steps.min()) < 0:
        row = int((steps < 0).nonzero()[0])
        raise ValueError(
            f"indptr must never fall, got {int(indptr[row])} then {int(indptr[row + 1])} "
            f"at row {row}"
        )
