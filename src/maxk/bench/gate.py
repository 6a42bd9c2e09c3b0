"""Correct first: nothing is timed whose result has not been compared with float64.

The truth is float64 arithmetic on the same inputs, cross-checked on sampled rows against the
definition in :mod:`maxk.ops.spmm.reference`. Outputs are allocated poisoned (NaN), so that a cell
that nobody writes shows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from maxk.core.errors import MaxKError
from maxk.graph.adjacency import Adjacency
from maxk.graph.csr import CSR
from maxk.ops.spmm import reference

#: Rows that are computed a second time by the definition.
SAMPLED_ROWS = 64
#: Rows compared at once, which bounds the float64 copy of an output.
BLOCK_ROWS = 1 << 16
#: Largest ‖out - truth‖ / ‖truth‖ of the whole output that passes.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1e-2,
}
#: A single row may be this many times further away: it has fewer entries to average over.
ROW_FACTOR = 30.0


class GateError(MaxKError, RuntimeError):
    """An implementation of this package returned a wrong result, so that nothing was timed."""


@dataclass(frozen=True)
class Verdict:
    """How far an output lies from the truth.

    Attributes:
        error: ‖out - truth‖ / ‖truth‖ over the whole output; inf where a cell is not finite.
        row_error: The largest distance of a row, over the root mean square norm of the rows.
        tolerance: What ``error`` may be; ``row_error`` may be :data:`ROW_FACTOR` times that.
    """

    error: float
    row_error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the output may be timed; NaN never passes."""
        return self.error <= self.tolerance and self.row_error <= ROW_FACTOR * self.tolerance

    def __str__(self) -> str:
        return (
            f"error {self.error:.1e}, worst row {self.row_error:.1e}, allowed {self.tolerance:.0e}"
        )


def judge(out: Tensor, truth: Tensor, dtype: torch.dtype) -> Verdict:
    """Compares an output of ``dtype`` with its float64 truth of the same shape, block by block."""
    if out.shape != truth.shape:
        raise GateError(f"an output has shape {list(out.shape)}, expected {list(truth.shape)}")
    norms, distances = [], []
    for rows in _blocks(out.shape[0]):
        true = truth[rows]
        norms.append(true.square().sum(1))
        distances.append((out[rows].to(torch.float64) - true).square().sum(1))
    norm = torch.cat(norms) if norms else truth.new_zeros(0)
    distance = torch.cat(distances) if distances else norm
    total, far = float(norm.sum()), float(distance.sum())
    if total == 0.0:
        error = row = 0.0 if far == 0.0 else float("inf")
    else:
        error = (far / total) ** 0.5
        row = (float(distance.max()) * norm.numel() / total) ** 0.5
    return Verdict(error, row, TOLERANCE[dtype])


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK_ROWS) for start in range(0, rows, BLOCK_ROWS))


class Truth:
    """Float64 products of one adjacency, each checked on sampled rows against the definition."""

    def __init__(self, adjacency: Adjacency, weight: Tensor | None) -> None:
        self._adjacency = Adjacency(
            adjacency.csr, _double(adjacency.row_scale), _double(adjacency.column_scale)
        )
        self._weight = _double(weight)
        self._values = self._adjacency.entries(self._weight, torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the aggregate of dense ``x`` [N, D] in float64, [M, D]."""
        a, dense = self._adjacency, x.to(torch.float64)
        matrix = csr_tensor(a.indptr, a.indices, self._values, a.num_src)
        truth = torch.mm(matrix, dense)
        rows = _sample(a.num_dst, a.device)
        part, edges = _take_rows(a.indptr, a.indices, rows, a.num_src)
        piece = Adjacency(part)
        expected = reference.spmm(piece, self._values[edges], dense)
        _agree(truth[rows], expected, "forward")
        return truth

    def backward(self, grad: Tensor) -> Tensor:
        """Returns the adjoint of dense ``grad`` [M, D] in float64, [N, D]."""
        a, dense = self._adjacency, grad.to(torch.float64)
        matrix = csr_tensor(a.t_indptr, a.t_indices, self._values[a.t_edges], a.num_dst)
        truth = torch.mm(matrix, dense)
        # The adjoint from the forward edges alone, so that a wrong transpose cannot hide.
        columns = _sample(a.num_src, a.device)
        wanted = torch.full((a.num_src,), -1, dtype=torch.int64, device=a.device)
        wanted[columns] = torch.arange(len(columns), device=a.device)
        slot = wanted[a.indices.long()]
        edges = (slot >= 0).nonzero()[:, 0]
        messages = self._values[edges, None] * dense[a.csr.rows()[edges].long()]
        expected = dense.new_zeros(len(columns), dense.shape[1])
        expected.index_add_(0, slot[edges], messages)
        _agree(truth[columns], expected, "backward")
        return truth


def _double(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().to(torch.float64)


def csr_tensor(indptr: Tensor, indices: Tensor, values: Tensor, columns: int) -> Tensor:
    """Returns torch's sparse CSR matrix of these arrays, with 32-bit ids where they fit.

    Both index arrays must share a dtype, and the sparse libraries of both devices are built for
    32 bits: 64-bit arrays would be converted in every call.
    """
    small = values.numel() < 2**31 and max(columns, indptr.numel()) < 2**31
    dtype = torch.int32 if small else torch.int64
    size = (indptr.numel() - 1, columns)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        return torch.sparse_csr_tensor(
            indptr.to(dtype), indices.to(dtype), values, size, check_invariants=False
        )


def _sample(rows: int, device: torch.device) -> Tensor:
    if rows <= SAMPLED_ROWS:
        return torch.arange(rows, device=device)
    drawn: Tensor = torch.unique(torch.randint(rows, (SAMPLED_ROWS,), device=device))
    return drawn


def _take_rows(indptr: Tensor, indices: Tensor, rows: Tensor, num_src: int) -> tuple[CSR, Tensor]:
    """Returns the CSR of some rows, and where its edges lie in the whole."""
    starts, lengths = indptr[rows], indptr[rows + 1] - indptr[rows]
    part = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    shift = torch.repeat_interleave(starts - part[:-1], lengths)
    edges = torch.arange(int(part[-1]), device=indptr.device) + shift
    return CSR(part, indices[edges], num_src), edges


def _agree(truth: Tensor, expected: Tensor, what: str) -> None:
    verdict = judge(truth, expected, torch.float64)
    if not verdict.passed:
        raise GateError(f"the float64 {what} disagrees with the definition: {verdict}")


class _Poison(TorchFunctionMode):
    """Fills what ``torch.empty`` and its kin return with NaN, or the largest integer."""

    _makers = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in self._makers:
            if out.is_floating_point():
                out.fill_(float("nan"))
            elif out.dtype != torch.bool:
                out.fill_(torch.iinfo(out.dtype).max)
        return out


@contextmanager
def poisoned(device: torch.device, nbytes: int) -> Iterator[None]:
    """Inside, fresh outputs hold NaN until they are written.

    Python's ``torch.empty`` is filled in this thread; on a GPU, a block of ``nbytes`` is filled and
    freed besides, so that the caching allocator hands it to whoever asks next, on any thread.
    """
    if device.type == "cuda":
        block = torch.full((max(nbytes // 4, 1),), float("nan"), device=device)
        del block
    with _Poison():
        yield


def run(call: Callable[[], object], device: torch.device, nbytes: int) -> object:
    """Returns the output of a call made among poisoned allocations."""
    with poisoned(device, nbytes):
        out = call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return out
