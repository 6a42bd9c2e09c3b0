"""How a numba kernel reaches the CPU: threads, equal pieces of work, what numba has no word for.

Imported by the CPU implementations only, since it imports numba.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.core import event
from numba.extending import intrinsic

from maxk.core.forks import lost_threads
from maxk.device.compiling import begin_compilation, end_compilation
from maxk.device.cpu_cache import KernelCache
from maxk.device.cpu_threads import start_threads

# Four times more pieces than any usual core count, so that one heavy piece cannot hold the others.
# A fixed number also makes the result independent of the number of threads.
PIECES = 64

# NaN and infinity keep their meaning; everything else may be rearranged into vector code.
FASTMATH = {"nsz", "arcp", "contract", "afn", "reassoc"}

F = TypeVar("F", bound=Callable[..., Any])

#: Whether kernels check every index and raise IndexError outside an array, on one thread. Set
#: before the operations are imported; for tests.
check_bounds = False


def kernel(function: F) -> F:
    """Compile a parallel kernel on its first call and keep it on disk."""
    return _compiled(function, parallel=not check_bounds, fastmath=FASTMATH)


def helper(function: F) -> F:
    """Compile a function that kernels call and keep it on disk."""
    return _compiled(function, parallel=False, fastmath=False)


def _compiled(function: F, **options: Any) -> F:
    if numba.config.DISABLE_JIT:
        return function  # never run: start_threads refuses first
    options.update(error_model="numpy", boundscheck=check_bounds)
    compiled = njit(**options)(function)
    compiled._cache = KernelCache(function, options)
    return cast(F, compiled)


class _Compilations(event.Listener):
    """Counts the compilation of our functions, and of what they call, as such."""

    def on_start(self, event: Any) -> None:
        if isinstance(event.data["dispatcher"]._cache, KernelCache):
            begin_compilation()

    def on_end(self, event: Any) -> None:
        if isinstance(event.data["dispatcher"]._cache, KernelCache):
            end_compilation()


event.register("numba:compile", _Compilations())


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
    """Threads a kernel uses: as many as torch does. Sets numba to the same number.

    In a forked child that is one, for torch too.

    Raises:
        DeviceError: the environment keeps numba from compiling or from starting threads.
    """
    start_threads()
    wanted = torch.get_num_threads()
    if lost_threads():
        if wanted != 1:
            torch.set_num_threads(1)
        return 1
    count: int = min(_own_threads or wanted, numba.config.NUMBA_NUM_THREADS)
    if numba.get_num_threads() != count:
        numba.set_num_threads(count)
    if torch.get_num_threads() != wanted:  # both may share one OpenMP
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
