"""Correct first: nothing is timed whose result has not been compared with float64.

The truth is float64 arithmetic on the same inputs, cross-checked on sampled rows against the
definition in :mod:`maxk.ops.spmm.reference`. Each row is compared at its own size, so that an error
in small rows does not hide behind large ones. Outputs are allocated poisoned (NaN), so that a cell
that nobody writes is found.
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

from maxk.cbsr import CBSR
from maxk.core.errors import MaxKError
from maxk.graph.adjacency import Adjacency
from maxk.graph.csr import CSR
from maxk.ops.spmm import reference

#: Rows that are computed a second time by the definition.
SAMPLED_ROWS = 64
#: Rows compared at once, which bounds the float64 copy of an output.
BLOCK_ROWS = 1 << 16
#: Largest ‖out - truth‖ / ‖truth‖ that passes, of the whole output and of each row.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1e-2,
}
#: What a row may differ in addition: this many roundings of its own summands Σ |w| |x|.
#: Adding n numbers of random sign one after the other rounds partial sums that grow to Σ |x| / √n,
#: n times in random directions: 0.7 roundings of Σ |x|, whatever n. Where terms cancel, this is
#: larger than the relative part; where they do not, it is smaller.
ROUNDINGS = 8.0
#: Fixed-point words may add at most this share of a row's summands: rows whose entries are smaller
#: than about 500 steps are refused, although the words' contract allows them to become zeros.
FIXED_SHARE = 1e-3


class GateError(MaxKError, RuntimeError):
    """An implementation of this package returned a wrong result, so that nothing was timed."""


@dataclass(frozen=True)
class Expected:
    """A float64 result, with the size that each entry had before its terms cancelled.

    Attributes:
        value: [M, D] float64.
        summands: [M, D] float32, Σ |w| |x| of the terms that each entry adds up.
        fixed: [M] or None: the most that fixed-point words may move a row, in the norm of a row.
    """

    value: Tensor
    summands: Tensor
    fixed: Tensor | None = None

    def gather(self, columns: Tensor) -> Expected:
        """Returns the kept entries of each row, [N, k]."""
        return Expected(self.value.gather(1, columns), self.summands.gather(1, columns))

    def rows(self, rows: Tensor | slice) -> Expected:
        """Returns some rows."""
        fixed = None if self.fixed is None else self.fixed[rows]
        return Expected(self.value[rows], self.summands[rows], fixed)


@dataclass(frozen=True)
class Accuracy:
    """How far an output lies from the truth.

    Attributes:
        error: ‖out - truth‖ / ‖truth‖ over the whole output; not finite where a cell is not.
        worst_row: The largest distance of a row, as a multiple of what that row may differ.
        tolerance: The most that ``error`` may be; ``worst_row`` may be 1.
    """

    error: float
    worst_row: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the output may be timed; NaN never passes."""
        return self.error <= self.tolerance and self.worst_row <= 1.0

    def __str__(self) -> str:
        return (
            f"error {self.error:.1e}, allowed {self.tolerance:.0e}; "
            f"worst row {self.worst_row:.1e} times its allowance"
        )


def judge(out: Tensor, expected: Expected, dtype: torch.dtype) -> Accuracy:
    r"""Compares an output of ``dtype`` with its expected value, row by row.

    Row i may differ by

    .. math:: \tau \lVert y_i \rVert + 8 u \lVert s_i \rVert
        + \min(f_i, 10^{-3} \lVert s_i \rVert) + \sqrt{D}\, t

    with τ of :data:`TOLERANCE`, u half the epsilon of the dtype that sums are kept in, s the
    summands, f the fixed-point steps, and t half the smallest number of ``dtype``.

    Args:
        out: [M, D].
        expected: Its truth, of the same shape.
        dtype: Of the values that were aggregated.

    Raises:
        GateError: The shapes differ.
    """
    if out.shape != expected.value.shape:
        raise GateError(
            f"an output has shape {list(out.shape)}, expected {list(expected.value.shape)}"
        )
    total = far = worst = 0.0
    for rows in _blocks(out.shape[0]):
        part = expected.rows(rows)
        norm = part.value.square().sum(1)
        distance = (out[rows].to(torch.float64) - part.value).square().sum(1)
        multiple = distance.sqrt() / _allowance(part, norm.sqrt(), dtype)
        total, far = total + float(norm.sum()), far + float(distance.sum())
        worst = max(float(multiple.max()), worst)  # NaN first: max keeps it
        if worst != worst:
            break
    error = (far / total) ** 0.5 if total else 0.0 if worst <= 1.0 else float("inf")
    return Accuracy(error, worst, TOLERANCE[dtype])


def _allowance(expected: Expected, norm: Tensor, dtype: torch.dtype) -> Tensor:
    sums = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32)
    own = torch.finfo(dtype)
    summands = torch.linalg.vector_norm(expected.summands, dim=1, dtype=torch.float64)
    allowed: Tensor = TOLERANCE[dtype] * norm + ROUNDINGS * sums.eps / 2 * summands
    if expected.fixed is not None:
        allowed += torch.minimum(expected.fixed, FIXED_SHARE * summands)
    # Not 0 where that underflows, in float64: rows without anything would divide 0 by 0.
    smallest = max(own.smallest_normal * own.eps / 2, torch.finfo(torch.float64).tiny)
    allowed += expected.value.shape[1] ** 0.5 * smallest
    return allowed


def fixed_step(width: int) -> float:
    """Returns a step of fixed-point words, as a share of the largest value.

    A word of 32 bits holds the column in 8 bits or more and the value in the rest, of which a sum
    over a piece of a row takes 9: 2^-22 up to D = 512, then twice as much with each column bit.
    """
    return 2.0 ** -min(22, 31 - max(8, (width - 1).bit_length()))


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

    def forward(self, x: Tensor) -> Expected:
        """Returns the aggregate of dense ``x`` [N, D] in float64, [M, D]."""
        a, dense = self._adjacency, x.to(torch.float64)
        truth = _product(a.indptr, a.indices, self._values, a.num_src, dense)
        rows = _sample(a.num_dst, a.device)
        part, edges = _take_rows(a.indptr, a.indices, rows, a.num_src)
        piece = Adjacency(part)
        definition = reference.spmm(piece, self._values[edges], dense)
        _agree(definition, truth.rows(rows), "forward")
        return truth

    def fixed(self, features: CBSR) -> Tensor:
        r"""Returns the most that fixed-point words may move each row of the forward, [M].

        Each kept entry is off by half a step at most, so that row i is off by
        :math:`R_i \, n_i \sqrt{k} \, \max|C v| \, \mathrm{step} / 2` with n edges.
        """
        a, values = self._adjacency, features.values.to(torch.float64)
        if a.column_scale is not None:
            values = values * a.column_scale[:, None]
        largest = values.abs().max() if values.numel() else values.new_zeros(())
        edges = a.indptr.diff().to(torch.float64)
        if a.row_scale is not None:
            edges = edges * a.row_scale
        moved: Tensor = edges * largest * (features.k**0.5 * fixed_step(features.width) / 2)
        return moved

    def backward(self, grad: Tensor) -> Expected:
        """Returns the adjoint of dense ``grad`` [M, D] in float64, [N, D]."""
        a, dense = self._adjacency, grad.to(torch.float64)
        truth = _product(a.t_indptr, a.t_indices, self._values[a.t_edges], a.num_dst, dense)
        # The adjoint from the forward edges alone, so that a wrong transpose cannot hide.
        columns = _sample(a.num_src, a.device)
        wanted = torch.full((a.num_src,), -1, dtype=torch.int64, device=a.device)
        wanted[columns] = torch.arange(len(columns), device=a.device)
        slot = wanted[a.indices.long()]
        edges = (slot >= 0).nonzero()[:, 0]
        messages = self._values[edges, None] * dense[a.csr.rows()[edges].long()]
        definition = dense.new_zeros(len(columns), dense.shape[1])
        definition.index_add_(0, slot[edges], messages)
        _agree(definition, truth.rows(columns), "backward")
        return truth


def _product(
    indptr: Tensor, indices: Tensor, values: Tensor, columns: int, dense: Tensor
) -> Expected:
    matrix = csr_tensor(indptr, indices, values, columns)
    # Nothing cancels in a sum of absolute values, so that float32 serves.
    sizes = csr_tensor(indptr, indices, values.abs().to(torch.float32), columns)
    return Expected(torch.mm(matrix, dense), torch.mm(sizes, dense.abs().to(torch.float32)))


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


def _agree(definition: Tensor, truth: Expected, what: str) -> None:
    accuracy = judge(definition, truth, torch.float64)
    if not accuracy.passed:
        raise GateError(f"the float64 {what} disagrees with the definition: {accuracy}")


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


def run_poisoned(call: Callable[[], object], device: torch.device, nbytes: int) -> object:
    """Returns the output of a call made among poisoned allocations."""
    with poisoned(device, nbytes):
        out = call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return out
