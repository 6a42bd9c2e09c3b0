"""Whether this process lost its threads in a fork.

A forked child holds the memory of its parent, pools of threads included, but only the thread that
called ``fork``. Whoever hands work to such a pool waits forever, or is killed: GNU OpenMP, which
torch and numba share, does both.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_before = False


def _several_threads() -> bool:
    try:
        return len(list(Path("/proc/self/task").iterdir())) > 1
    except OSError:
        return True  # not Linux: nothing says that there is only one


def _started_by_fork() -> bool:
    """Whether multiprocessing forked this process before this module was imported."""
    context = sys.modules.get("multiprocessing.context")
    process = getattr(context, "ForkProcess", None)
    return process is not None and isinstance(context.process.current_process(), process)  # type: ignore[union-attr]


_lost = _started_by_fork()


def lost_threads() -> bool:
    """Return whether the process, or one that it descends from, had threads when it was forked."""
    return _lost


def _look() -> None:
    global _before
    _before = _several_threads()


def _mark() -> None:
    global _lost
    _lost = _lost or _before


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_look, after_in_child=_mark)
