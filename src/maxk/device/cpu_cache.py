"""Where compiled CPU kernels stay on disk.

numba keeps the entries of a function in numbered files behind an index. Two processes that add one
at the same time can give one number to two entries, and the loser's calls then run machine code for
other types. Here every entry is a file of its own. Its name is a digest of all that the code
depends on, it is written whole or not at all, and the text behind the digest is compared again on
load, so there is nothing that two processes could disagree about and no lock to wait for.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import pickle
import platform
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core import serialize
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult

from maxk.core.files import write_file
from maxk.device.caches import cannot_keep, cpu_cache_folder
from maxk.device.cpu_threads import start_threads

log = logging.getLogger(__name__)

# What numba takes from the environment and compiles into the code.
_CONFIG = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "USING_SVML", "DEBUG_LINE_INFO")


class KernelCache(_Cache):
    """The entries of one function; what a numba dispatcher asks before and tells after compiling.

    Args:
        function: The Python function.
        options: What it is compiled with.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._function = function
        self._options = options

    @property
    def cache_path(self) -> str | None:
        """The folder, for ``dispatcher.stats``."""
        folder = cpu_cache_folder()
        return None if folder is None else str(folder)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function for argument types, or None where no whole entry is one."""
        start_threads()  # asked first of all, so no kernel is linked before
        target_context.refresh()
        text = self._describe(sig, target_context.codegen())
        path = self._path(text)
        payload = None if path is None else _read(path, text)
        if payload is None:
            return None
        try:
            result = CompileResult._rebuild(target_context, *pickle.loads(payload))
        except Exception as error:
            # Whole, but made by a numba that names its parts otherwise: any exception there is.
            log.debug("%s is compiled again: %s", path, error)
            return None
        return result if tuple(result.signature.args) == tuple(sig) else None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled function; without a folder that can be written, log that once."""
        if data.library.has_dynamic_globals or any(not part.can_cache for part in data.lifted):
            return
        text = self._describe(sig, data.codegen)
        path = self._path(text)
        if path is None:
            cannot_keep(None, None)
            return
        payload = serialize.dumps(data._reduce())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, _header(text, payload) + payload, shared=True)
        except OSError as error:
            cannot_keep(path.parent, error)

    def enable(self) -> None:
        """Do nothing: it is always on."""

    def disable(self) -> None:
        """Do nothing: it is always on."""

    def flush(self) -> None:
        """Do nothing: an entry never goes stale, since its name covers its source."""

    def _path(self, text: str) -> Path | None:
        folder = cpu_cache_folder()
        if folder is None:
            return None
        digest = hashlib.sha256(text.encode()).hexdigest()[:40]
        return folder / f"{self._function.__name__.strip('_')}-{digest}.numba"

    def _describe(self, sig: Any, codegen: Any) -> str:
        """All that the machine code depends on, as text."""
        parts = {
            "function": f"{self._function.__module__}.{self._function.__qualname__}",
            "types": ", ".join(map(str, sig)),
            "options": repr(sorted((n, _plain(v)) for n, v in self._options.items())),
            "sources": _sources(self._function),
            "python": f"{platform.python_implementation()} {sys.version}",
            "numba": numba.__version__,
            "llvmlite": llvmlite.__version__,
            "numpy": np.__version__,
            "config": repr([getattr(numba.config, name, None) for name in _CONFIG]),
            "machine": repr(codegen.magic_tuple()),
        }
        return "\n".join(f"{name}: {value}" for name, value in parts.items())


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set) else value


@cache
def _sources(function: Callable[..., Any]) -> str:
    """A digest of the files that a function is written in, and of the constants that it uses."""
    functions = {function}
    values: set[str] = set()
    waiting = [function]
    while waiting:
        for name, value in inspect.getclosurevars(waiting.pop()).globals.items():
            inner = getattr(value, "py_func", None) or getattr(value, "_defn", None)
            if inner is not None and inner not in functions:
                functions.add(inner)
                waiting.append(inner)
            elif isinstance(value, bool | int | float | str | bytes | tuple):
                values.add(f"{name} = {value!r}")
    files = {Path(inspect.getfile(each)) for each in functions}
    digest = hashlib.sha256()
    for part in (*(p.read_bytes() for p in sorted(files)), *(v.encode() for v in sorted(values))):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()


def _header(text: str, payload: bytes) -> bytes:
    return f"{hashlib.sha256(payload).hexdigest()}\n{text}\n\n".encode()


def _read(path: Path, text: str) -> bytes | None:
    """The payload of an entry that is whole and was made for this text."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    payload = data.partition(b"\n\n")[2]
    return payload if data == _header(text, payload) + payload else None
