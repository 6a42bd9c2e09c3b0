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
        cache_dir: Folder for compiled kernels, those of CPUs and of GPUs (``MAXK_CACHE_DIR``;
            otherwise ``$XDG_CACHE_HOME/maxk`` or ``~/.cache/maxk``). None where no variable names
            one and the user has no home folder, as in a container with a user id of its own.
        data_dir: Folder where data sets found by name lie (``MAXK_DATA_DIR``; otherwise ``data``
            in the working directory).
        cuda_visible_devices: ``CUDA_VISIBLE_DEVICES``, which hides GPUs from CUDA, or None.
    """

    cache_dir: Path | None
    data_dir: Path
    cuda_visible_devices: str | None


@cache
def settings() -> Settings:
    """Returns the settings of this process; the environment is read once."""
    return Settings(
        cache_dir=_cache_dir(),
        data_dir=Path(os.environ.get("MAXK_DATA_DIR", "data")),
        cuda_visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def _cache_dir() -> Path | None:
    ours, everyone = os.environ.get("MAXK_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    try:
        if ours:
            return Path(ours).expanduser().absolute()
        return (Path(everyone) if everyone else Path.home() / ".cache") / "maxk"
    except RuntimeError:
        return None  # no home folder
