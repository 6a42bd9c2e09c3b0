"""The one writer of files: a reader finds the old file or the new one, never a part."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def whole_file(
    path: Path, *, keep: Path | None = None, shared: bool = False
) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of ``path`` when the block ends without an error.

    It is written under a temporary name in the same folder, flushed to the disk and renamed.

    Args:
        path: Where the file goes.
        keep: Where the file that is at ``path`` moves just before the rename.
        shared: Several processes may write this path at the same time: each has a temporary name of
            its own, and since such a file can be made again it is not flushed to the disk.

    Raises:
        OSError: the folder cannot be written or the disk is full; ``path`` stays as it was.
    """
    word = f".{secrets.token_hex(8)}" if shared else ""
    temporary = path.with_name(f".{path.name}{word}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            if not shared:
                file.flush()
                os.fsync(file.fileno())
        if keep is not None and path.exists():
            path.replace(keep)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_file(path: Path, data: bytes, *, keep: Path | None = None, shared: bool = False) -> None:
    """Write a whole file or nothing; see :func:`whole_file`."""
    with whole_file(path, keep=keep, shared=shared) as file:
        file.write(data)


def folder_error(folder: Path) -> str | None:
    """Return why no file can be made in a folder, or in what would become it; None where one can.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> folder_error(Path(tempfile.gettempdir()) / "new" / "folder") is None
        True
    """
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"{folder}: {error.strerror}"
