"""When kernels are compiled: logged once, and kept out of the time that they take to run.

Kernels that are loaded from disk are not compiled and leave no trace here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator

log = logging.getLogger(__name__)

_lock = threading.Lock()
_seconds = 0.0
_running = 0
_start = 0.0
_logged = False


def compile_seconds() -> float:
    """Return the seconds that this process has spent compiling kernels."""
    with _lock:
        return _seconds + (time.perf_counter() - _start if _running else 0.0)


def run_clock() -> float:
    """Return a time in seconds that stands still while kernels are compiled."""
    with _lock:
        return (_start if _running else time.perf_counter()) - _seconds


def begin_compilation() -> None:
    """Note that a compilation starts; the first one of a process is logged."""
    global _running, _start, _logged
    with _lock:
        first, _logged = not _logged, True
        if _running == 0:
            _start = time.perf_counter()
        _running += 1
    if first:
        log.info("compiling kernels, once")


def end_compilation() -> None:
    """Note that it ended. A compilation inside another one is counted once."""
    global _running, _seconds
    with _lock:
        _running -= 1
        if _running == 0:
            _seconds += time.perf_counter() - _start


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Count the time inside as compilation."""
    begin_compilation()
    try:
        yield
    finally:
        end_compilation()


def _after_fork() -> None:
    global _lock, _running
    _lock, _running = threading.Lock(), 0  # whatever the parent's other threads were doing


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)
