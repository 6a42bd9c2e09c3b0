"""Which format a file has; read and write any of them."""

from __future__ import annotations

import gzip
import logging
import os
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from maxk.core.errors import DataError
from maxk.graph.files.edges import NODE_BYTES, Edges, check_reach, check_room, in_memory
from maxk.graph.files.matrix_market import read_matrix_market, write_matrix_market
from maxk.graph.files.npz import npz_edges, read_npz
from maxk.graph.files.text import TEXT_SUFFIXES, read_edge_list, text_kind, write_edge_list
from maxk.graph.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

GRAPH_SUFFIXES = (".npz", *TEXT_SUFFIXES, ".mtx")
#: Suffixes that torch.save and pickle use.
PICKLE_SUFFIXES = (".pt", ".pth", ".pkl", ".pickle")


def load_graph(path: str | Path) -> Graph:
    """Read a graph file.

    Args:
        path: ``.npz`` (``edge_index`` or ``indptr`` and ``indices``), an edge list (``.txt``,
            ``.csv``, ``.tsv``) or MatrixMarket (``.mtx``); the text formats also gzipped (``.gz``).

    Returns:
        The graph, its edges as stored. An edge list has one node more than its largest id. What
        was not read is logged as a warning.

    Raises:
        DataError: the file is missing, broken, or of another kind.

    Example:
        >>> import tempfile, torch
        >>> from maxk.graph.files import load_graph, save_graph
        >>> graph = Graph.from_edge_index(torch.tensor([[0, 1], [1, 2]]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_graph(graph, folder + "/path.txt")
        ...     load_graph(folder + "/path.txt")
        Graph(num_src=3, num_dst=3, num_edges=2, device=cpu)
    """
    path = Path(path)
    edges = read_edges(path)
    for note in edges.notes:
        log.warning(note)
    reach = int(edges.edge_index.max()) + 1 if edges.edge_index.numel() else 0
    counts = (
        reach if edges.num_src is None else edges.num_src,
        reach if edges.num_dst is None else edges.num_dst,
    )
    if edges.num_src is None and edges.num_dst is None:
        check_reach(edges, reach, str(path))
    what = f"{path}: a graph of {counts[0]} x {counts[1]} nodes"
    check_room(NODE_BYTES * sum(counts), what)
    try:
        with in_memory(what):
            return Graph.from_edge_index(edges.edge_index, counts, edges.weight)
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def save_graph(graph: Graph, path: str | Path) -> None:
    """Write a graph; the file appears whole or not at all.

    Args:
        graph: Any graph. An edge list cannot say how many nodes there are, so isolated nodes with
            the largest ids are lost in it; ``.npz`` and ``.mtx`` keep everything.
        path: As in :func:`load_graph`. Edges are written in CSR order. In ``.mtx`` rows are
            targets, as in :meth:`Graph.from_scipy`.

    Raises:
        DataError: the suffix is unknown, or the file cannot be written.
    """
    path = Path(path)
    kind = graph_kind(path)
    with _whole_file(path) as raw:
        if kind == ".npz":
            arrays = {"indptr": graph.indptr, "indices": graph.indices}
            if graph.weight is not None:
                arrays["weight"] = graph.weight.detach()
            parts: dict[str, Any] = {name: value.cpu().numpy() for name, value in arrays.items()}
            np.savez_compressed(raw, num_src=np.int64(graph.num_src), **parts)
            return
        zipped = path.suffix == ".gz"
        stream: Any = gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) if zipped else raw
        if kind == ".mtx":
            write_matrix_market(graph, stream)
        else:
            write_edge_list(graph, stream, "," if kind == ".csv" else "\t")
        if zipped:
            stream.close()


def graph_kind(path: Path) -> str:
    """Suffix that decides how a graph file is read, without ``.gz``."""
    kind = text_kind(path)
    if kind in PICKLE_SUFFIXES:
        raise DataError(
            f"{path} is a pickle, which can run code when it is read; save its arrays with "
            "numpy.savez(path, **arrays), for PyG's Data those of data.to_dict()"
        )
    if kind not in GRAPH_SUFFIXES or (kind == ".npz" and path.suffix == ".gz"):
        raise DataError(
            f"{path}: unknown kind of graph file {path.suffix or path.name!r}; "
            f"known: {', '.join(GRAPH_SUFFIXES)}, and .gz of the text formats"
        )
    return kind


def read_edges(path: Path) -> Edges:
    """Edges of any graph file; see :func:`load_graph`."""
    kind = graph_kind(path)
    with in_memory(f"{path}: what it holds"):
        if kind == ".npz":
            return npz_edges(read_npz(path), path)
        if kind == ".mtx":
            return read_matrix_market(path)
        return read_edge_list(path)


@contextmanager
def _whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file next to ``path`` and rename it when all went well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            yield stream
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error})") from error
    finally:
        temporary.unlink(missing_ok=True)
