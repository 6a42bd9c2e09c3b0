"""The folders of compiled kernels, and what is said when nothing can be kept in them."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

from maxk.core.files import folder_error
from maxk.core.settings import settings

log = logging.getLogger(__name__)


def cpu_cache_folder() -> Path | None:
    """Return the folder of numba's machine code, or None where the user has no home folder."""
    return _below("cpu")


def cuda_cache_folder() -> Path | None:
    """Return the folder of NVRTC's cubins, or None where the user has no home folder."""
    return _below("kernels")


def cache_error(folder: Path | None) -> str | None:
    """Return why no kernel can be kept in a folder, or None where it can."""
    return "you have no home folder" if folder is None else folder_error(folder)


def cannot_keep(folder: Path | None, error: OSError | None) -> None:
    """Log, once for each reason, that every process compiles its kernels again."""
    _warn(cache_error(folder) or f"{folder}: {error.strerror if error else 'unknown'}")


@cache
def _warn(reason: str) -> None:
    log.warning(
        "compiled kernels cannot be kept (%s), so every process compiles them again; set "
        "MAXK_CACHE_DIR to a folder that you may write",
        reason,
    )


def _below(name: str) -> Path | None:
    folder = settings().cache_dir
    return None if folder is None else folder / name
