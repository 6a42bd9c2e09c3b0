"""How a numba kernel reaches the CPU: threads, equal pieces of work, what numba has no word for.

Imported by the CPU implementations only, since it imports numba.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

# Four times more pieces than any usual core count, so that one heavy piece cannot hold the others.
# A fixed number also makes the result independent of the number of threads.
PIECES = 64

# NaN and infinity keep their meaning; everything else may be rearranged into vector code.
FASTMATH = {"nsz", "arcp", "contract", "afn", "reassoc"}

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compiles a parallel kernel on first call and keeps it on disk."""
    compiled: F = njit(
        parallel=True, fastmath=FASTMATH, cache=True, error_model="numpy", boundscheck=False
    )(function)
    return compiled


@intrinsic
def prefetch(typing_context: Any, array: Any, offset: Any) -> Any:
    """Asks for the cache line of ``array.data[offset]``; numba has no call for it."""
    signature = types.void(array, offset)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, args[0])
        byte_pointer = ir.IntType(8).as_pointer()
        int32 = ir.IntType(32)
        address = builder.bitcast(builder.gep(view.data, [args[1]]), byte_pointer)
        call = builder.module.declare_intrinsic(
            "llvm.prefetch",
            [byte_pointer],
            ir.FunctionType(ir.VoidType(), [byte_pointer, int32, int32, int32]),
        )
        read, keep, data = int32(0), int32(3), int32(1)
        builder.call(call, [address, read, keep, data])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def reinterpret(typing_context: Any, value: Any, like: Any) -> Any:
    """The bits of ``value`` read as a number of the type of ``like``.

    numba widens 32-bit integer arithmetic to 64 bits; the upper half is dropped again here.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (number, _), target = args, context.get_value_type(signature.return_type)
        if isinstance(signature.args[0], types.Integer) and value.bitwidth > like.bitwidth:
            number = builder.trunc(number, ir.IntType(like.bitwidth))
        return builder.bitcast(number, target)

    return like(value, like), codegen


@intrinsic
def trailing_zeros(typing_context: Any, word: Any) -> Any:
    """Zero bits below the lowest set bit of a uint64 that is not 0, as int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.IntType(1)(1))

    return types.int64(types.uint64), codegen


# Threads of the kernels where torch has one, see torch_on_one_thread.
_own_threads: int | None = None


def threads() -> int:
    """Threads a kernel uses: as many as torch does. Sets numba to the same number."""
    wanted = torch.get_num_threads()
    count: int = min(_own_threads or wanted, numba.config.NUMBA_NUM_THREADS)
    if numba.get_num_threads() != count:
        numba.set_num_threads(count)
    # Both may share one OpenMP runtime, whose default numba raises when it starts its threads.
    if torch.get_num_threads() != wanted:
        torch.set_num_threads(wanted)
    return count


@contextlib.contextmanager
def torch_on_one_thread() -> Iterator[None]:
    """Torch's own operations on one thread while inside, the kernels on as many as before.

    Matrix products and sums of torch round differently on another number of threads; the kernels
    cut their work without asking for it.
    """
    global _own_threads
    before, count = _own_threads, torch.get_num_threads()
    _own_threads = before or count
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)
        _own_threads = before


def equal_rows(rows: int, pieces: int = PIECES) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Boundaries of ``pieces`` runs of rows of equal length, int64 [pieces + 1]."""
    return np.arange(pieces + 1, dtype=np.int64) * rows // pieces


def equal_edges(
    indptr: np.ndarray[Any, np.dtype[np.int64]], pieces: int = PIECES
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Boundaries of ``pieces`` runs of rows that hold about equally many edges.

    A row counts as one edge more than it has, so that empty rows are shared out too.
    """
    rows = indptr.shape[0] - 1
    work = indptr + np.arange(rows + 1)
    wanted = np.arange(1, pieces, dtype=np.int64) * work[-1] // pieces
    bounds = np.empty(pieces + 1, np.int64)
    bounds[0], bounds[-1] = 0, rows
    bounds[1:-1] = np.searchsorted(work, wanted)
    return bounds
