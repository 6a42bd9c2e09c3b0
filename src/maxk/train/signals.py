"""SIGINT and SIGTERM as a list, so that a run can end at the end of its epoch."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from types import FrameType

log = logging.getLogger(__name__)


@contextlib.contextmanager
def signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM in a list; a second one acts as if nothing watched."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        # Python hands signals to the main thread only.
        yield caught
        return
    watched = (signal.SIGINT, signal.SIGTERM)
    before = {int(number): signal.getsignal(number) for number in watched}

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        log.info("stopping after this epoch; a second signal stops at once, without saving")
        signal.signal(number, before[number])

    for watch in watched:
        signal.signal(watch, note)
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
