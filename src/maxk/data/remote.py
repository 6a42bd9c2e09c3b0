"""What fetching through another library needs around it: a time limit, and sentences for failures.

Loaders of other libraries raise whatever went wrong inside them. Here that becomes one sentence
that says which file is missing or broken and how to come by a good one.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import pickletools
import re
import socket
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from maxk.core.errors import DataError
from maxk.data.catalog import Entry

#: Longest silence of a server; the libraries themselves would wait forever.
SILENCE_SECONDS = 60.0


@contextlib.contextmanager
def timeout() -> Iterator[None]:
    """End a connection that stays silent, while inside."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SILENCE_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def explain(
    entry: Entry, root: Path, error: Exception, *, processed: Path | None, before: set[Path]
) -> DataError:
    """Say in one sentence why a data set could not be loaded.

    What was fetched only in part is removed, so that the next try fetches it again.

    Args:
        entry: The data set.
        root: The data folder.
        error: What the library raised.
        processed: What the library keeps of an earlier load, where that is what it read now.
        before: The files that were in the data set's folder before.
    """
    reason = _reason(error)
    if isinstance(error, MemoryError):
        return DataError(f"{entry.name} does not fit in memory: {reason}")
    if processed is not None:
        return DataError(
            f"{processed} cannot be read ({reason}); delete it: it is made again from the files "
            f"in {root / entry.folder}"
        )
    for path in sorted(contents(entry, root)):
        why = damage(path)
        if why is None:
            continue
        if path not in before:
            path.unlink()
            return _cannot_fetch(entry, root, f"{path.name} came {why}")
        return DataError(
            f"{path} is {why}; delete it and try again, or get a good one from {entry.page}"
        )
    if entry.missing(root):
        return _cannot_fetch(entry, root, reason)
    return DataError(
        f"{entry.name}: the files in {root / entry.folder} cannot be read ({reason}); delete them "
        f"and try again, or get them from {entry.page}"
    )


def verify(entry: Entry, root: Path, *, fetched: bool) -> None:
    """Compare the archive of a data set with its known checksum.

    An archive that cannot be unpacked is left to whoever unpacks it.

    Args:
        entry: The data set; one without archive or checksum passes.
        root: The data folder.
        fetched: Whether the archive came just now; then a wrong one is removed.

    Raises:
        DataError: it is whole, but another file.
    """
    if entry.archive is None or entry.sha256 is None:
        return
    path = root / entry.archive
    with path.open("rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    if checksum == entry.sha256 or damage(path) is not None:
        return
    if fetched:
        path.unlink()
    folder = root / entry.folder
    place = folder.parent if entry.source == "ogb" else folder
    raise DataError(
        f"{path} is not the known {path.name}: its SHA-256 is {checksum}, expected {entry.sha256}; "
        f"get it from {entry.page}, or unpack it into {place}/ yourself if you trust it"
    )


def contents(entry: Entry, root: Path) -> set[Path]:
    """Return the files of a data set that are there: raw ones, their archive, OGB's split."""
    folder = root / entry.folder
    paths = [*folder.glob("*"), *folder.parent.glob("split/*/*")]
    if entry.archive is not None:
        paths.append(root / entry.archive)
    return {path for path in paths if path.is_file()}


def damage(path: Path) -> str | None:
    """Say what is wrong with a file by its own format's marks, or None; run nothing in it."""
    kind = path.suffix.lower()
    try:
        if path.stat().st_size == 0:
            return "empty"
        if kind in (".npz", ".zip"):
            with zipfile.ZipFile(path) as archive:
                broken = archive.testzip()
            return None if broken is None else f"damaged (its member {broken})"
        if kind == ".gz":
            with gzip.open(path) as file:
                while file.read(1 << 24):
                    pass
        elif kind == ".json":
            with path.open(encoding="utf-8") as file:
                json.load(file)
        elif kind == ".npy":
            np.load(path, mmap_mode="r", allow_pickle=False)
        elif path.name.startswith("ind.") and kind != ".index":
            # The codes of a pickle are listed, not obeyed; a truncated one lacks its STOP.
            with path.open("rb") as file:
                for _ in pickletools.genops(file):
                    pass
    except Exception as error:
        return f"damaged ({_reason(error)})"
    return None


def _cannot_fetch(entry: Entry, root: Path, reason: str) -> DataError:
    if entry.archive is not None:
        place = (root / entry.archive).parent
        suggestion = f"get {entry.page} and put it, still packed, into {place}/"
    else:
        files = ", ".join(entry.missing(root))
        suggestion = f"get {files} from {entry.page} and put them into {root / entry.folder}/"
    return DataError(f"{entry.name} cannot be fetched ({reason}); {suggestion}")


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or "no reason given"
    if "Weights only load failed" in text:
        blocked = re.search(r"GLOBAL (\S+)|serialization\.\w+\(\[(\S+?)\]\)", text)
        named = f", {blocked[1] or blocked[2]}," if blocked else ""
        return f"it holds more than tensors{named} and could run code, so it was not opened"
    return f"{type(error).__name__}: {text[:200]}"
