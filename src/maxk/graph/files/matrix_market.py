"""MatrixMarket files, through SciPy."""

from __future__ import annotations

import codecs
import gzip
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch

from maxk.core.errors import DataError
from maxk.graph.files.edges import DAMAGE, Edges, check_file, check_finite, check_room

#: "1 1" and the end of the line.
SHORTEST_ENTRY = 4
#: Most that a gzipped byte may unpack to.
DEFLATE_RATIO = 1032
#: Two ids and a value.
ENTRY_BYTES = 24

if TYPE_CHECKING:
    from maxk.graph.graph import Graph


def read_matrix_market(path: Path) -> Edges:
    """Edges of a sparse MatrixMarket file: entry (i, j) is the edge j -> i, its value the weight.

    A ``pattern`` file has no weights; ``symmetric`` files give both directions.

    Raises:
        DataError: the file is no real, integer or pattern coordinate matrix, or is broken.
    """
    from scipy.io import mminfo, mmread

    check_file(path)
    try:
        with _open(path) as stream:
            rows, columns, entries, kind, field, _ = mminfo(_Careful(stream))
        if kind != "coordinate" or field == "complex":
            raise DataError(
                f"{path}: a graph is a coordinate matrix of real, integer or pattern entries, "
                f"got {kind} {field}"
            )
        _check_size(path, entries)
        with _open(path) as stream:
            matrix: Any = mmread(_Careful(stream))
    except DataError:
        raise
    except DAMAGE as error:
        text = str(error) or type(error).__name__
        line = re.match(r"Line (\d+): (.*)", text)
        where = f"{path}:{line[1]}: {line[2]}" if line else f"{path}: {text}"
        raise DataError(where) from error
    index = np.stack([matrix.col, matrix.row]).astype(np.int64)
    weight = None
    if field != "pattern":
        weight = torch.from_numpy(matrix.data.astype(np.float32))
        check_finite(weight, f"{path}: entry")
    return Edges(torch.from_numpy(index), weight, num_src=columns, num_dst=rows)


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, gzipped or not, after the byte order mark that an editor may put in front."""
    opened: Any = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rb") as stream:
        if stream.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            stream.seek(0)
        yield stream


class _Careful:
    """A stream that SciPy's parser reads to its end and no further.

    The parser looks for the end of a line with C's string functions: after a last line without
    one, and at a null byte, it reads memory that is not its own.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._ended = False

    def read(self, size: int = -1) -> bytes:
        """The next bytes; an end of line more at the end of the file."""
        data: bytes = self._stream.read(size)
        if b"\0" in data:
            raise ValueError("holds a null byte, so it is no text")
        if not data and not self._ended:
            self._ended = True
            return b"\n"
        return data


def _check_size(path: Path, entries: int) -> None:
    """Raise DataError where a file is too short for what it declares, or memory is."""
    size = path.stat().st_size * (DEFLATE_RATIO if path.suffix.lower() == ".gz" else 1)
    if entries * SHORTEST_ENTRY > size + SHORTEST_ENTRY:
        raise DataError(
            f"{path}: declares {entries} entries, but holds no more than {size // SHORTEST_ENTRY}"
        )
    # An entry of a symmetric file becomes two.
    check_room(2 * ENTRY_BYTES * entries, f"{path}: a matrix of {entries} entries")


def write_matrix_market(graph: Graph, stream: IO[bytes]) -> None:
    """Write entry (target, source) for each edge."""
    from scipy.io import mmwrite
    from scipy.sparse import coo_array

    source, target = graph.edge_index().cpu().numpy()
    field = "pattern" if graph.weight is None else "real"
    data = np.ones(graph.num_edges)
    if graph.weight is not None:
        data = graph.weight.detach().cpu().double().numpy()
    matrix = coo_array((data, (target, source)), shape=(graph.num_dst, graph.num_src))
    # SciPy closes what it writes to, and writes text.
    buffer = io.BytesIO()
    mmwrite(buffer, matrix, field=field, symmetry="general", precision=9)
    stream.write(buffer.getvalue())
