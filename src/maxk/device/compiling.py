"""When kernels are compiled: logged once, and counted so that it is not taken for their run time.

Kernels that are loaded from disk are not compiled and leave no trace here.
"""

from __future__ import annotations

import contextlib
import logging
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
    """Return the seconds that this process has spent compiling kernels.

    The difference of two calls is the part of a measured time that compilation took.
    """
    return _seconds


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
