"""Everything that the environment may say, read in one place."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """What a process takes from its environment.

    Attributes:
        cache_dir: Folder for compiled kernels (``MAXK_CACHE_DIR``; otherwise
            ``$XDG_CACHE_HOME/maxk`` or ``~/.cache/maxk``).
        data_dir: Folder where data sets found by name lie (``MAXK_DATA_DIR``; otherwise ``data``
            in the working directory).
        cuda_visible_devices: ``CUDA_VISIBLE_DEVICES``, which hides GPUs from CUDA, or None.
    """

    cache_dir: Path
    data_dir: Path
    cuda_visible_devices: str | None


@cache
def settings() -> Settings:
    """Returns the settings of this process; the environment is read once."""
    cache_home = os.environ.get("XDG_CACHE_HOME")
    base = Path(cache_home) if cache_home else Path.home() / ".cache"
    return Settings(
        cache_dir=Path(os.environ.get("MAXK_CACHE_DIR", base / "maxk")),
        data_dir=Path(os.environ.get("MAXK_DATA_DIR", "data")),
        cuda_visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )
