"""numba's threads, and what takes their place where they cannot run.

A parallel kernel hands its loop to a function named ``numba_parallel_for``. Here this name leads to
a function that passes the loop on to numba's threads, or runs all of it on the calling thread:

- in a forked child, where GNU OpenMP waits forever or kills the process;
- while another thread is inside numba's own pool, which ends the process when two threads enter it.
  That pool is used where there is neither TBB nor OpenMP.

It is the same machine code either way, and the pieces of a loop do not depend on the number of
threads, so the result has the same bits.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

import llvmlite.binding as llvm
import numba
import torch
from llvmlite import ir
from numba.core.compiler_lock import global_compiler_lock

from maxk.core.errors import DeviceError
from maxk.core.forks import lost_threads

_SYMBOL = "numba_parallel_for"

_start_lock = threading.Lock()
_started = False
# Whether the threads are taken, in the memory of the compiled function: 1 in a forked child.
_taken: ctypes.c_int32 | None = None
# Compiled code lives as long as its engine.
_engine: Any = None


def start_threads() -> None:
    """Start numba's threads, once, before the first kernel is compiled or loaded.

    Raises:
        DeviceError: the environment keeps numba from compiling or from starting threads.
    """
    global _started, _taken, _engine
    if _started:
        return
    with _start_lock:
        if _started:
            return
        if numba.config.DISABLE_JIT:
            raise DeviceError(
                "the kernels of the CPU cannot run uncompiled, but NUMBA_DISABLE_JIT is set; unset "
                "it, or run the reference with implementation='reference'"
            )
        torch_threads = torch.get_num_threads()
        try:
            numba.get_num_threads()
        except ValueError as error:
            raise DeviceError(
                "numba cannot start the threads that NUMBA_THREADING_LAYER="
                f"{numba.config.THREADING_LAYER} asks for ({' '.join(str(error).split())}); unset "
                "that variable"
            ) from error
        if torch.get_num_threads() != torch_threads:
            # Both may share one OpenMP, whose default numba raises when it starts its threads.
            torch.set_num_threads(torch_threads)
        pool = llvm.address_of_symbol(_SYMBOL)
        text = str(_passing_on(pool, one_at_a_time=numba.threading_layer() == "workqueue"))
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        target = llvm.Target.from_default_triple().create_target_machine()
        _engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), target)
        _engine.finalize_object()
        _taken = ctypes.c_int32.from_address(_engine.get_global_value_address("taken"))
        _taken.value = int(lost_threads())
        llvm.add_symbol(_SYMBOL, _engine.get_function_address("pass_on"))
        _started = True


def _passing_on(pool: int, *, one_at_a_time: bool) -> ir.Module:
    """``pass_on``: calls numba's function or, where its threads are taken, the loop itself."""
    word, number = ir.IntType(8 * ctypes.sizeof(ctypes.c_void_p)), ir.IntType(32)
    # The loop, then its four arguments: arrays, sizes, strides, data; dimensions, arrays, threads.
    pool_type = ir.FunctionType(ir.VoidType(), [word] * 8)
    loop_type = ir.FunctionType(ir.VoidType(), [word] * 4)
    module = ir.Module("maxk")
    taken = ir.GlobalVariable(module, number, "taken")
    taken.initializer = number(0)
    taken.align = 4
    function = ir.Function(module, pool_type, "pass_on")
    builder = ir.IRBuilder(function.append_basic_block())
    if one_at_a_time:
        swapped = builder.cmpxchg(taken, number(0), number(1), "acq_rel", "monotonic")
        free = builder.extract_value(swapped, 1)
    else:
        free = builder.icmp_signed("==", builder.load(taken), number(0))
    with builder.if_else(free) as (then, otherwise):
        with then:
            builder.call(builder.inttoptr(word(pool), pool_type.as_pointer()), function.args)
            if one_at_a_time:
                builder.store_atomic(number(0), taken, "release", 4)
        with otherwise:
            loop, *arguments = function.args[:5]
            builder.call(builder.inttoptr(loop, loop_type.as_pointer()), arguments)
    builder.ret_void()
    return module


def _before_fork() -> None:
    # No other thread is inside the compiler then: a child would wait forever for it to come out.
    global_compiler_lock.acquire()


def _after_fork_in_child() -> None:
    global _start_lock
    global_compiler_lock.release()
    _start_lock = threading.Lock()
    if _started and lost_threads():
        assert _taken is not None
        _taken.value = 1
        # torch shares the OpenMP whose threads were started here.
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=global_compiler_lock.release,
        after_in_child=_after_fork_in_child,
    )
