"""Graph files: ``.npz``, edge lists and MatrixMarket, read into edges or a Graph, and written back.

Nothing here unpickles, nothing is unpacked to the disk, and nothing trusts a size that a file
declares: a broken file is a :class:`~maxk.core.errors.DataError` that names it, with the line where
there is one.
"""

from maxk.graph.files.edges import HASHED, Edges, check_file, check_finite, check_reach, in_memory
from maxk.graph.files.kinds import (
    GRAPH_SUFFIXES,
    graph_kind,
    load_graph,
    read_edges,
    save_graph,
)
from maxk.graph.files.matrix_market import read_matrix_market
from maxk.graph.files.npz import check_indptr, npz_edges, read_npy, read_npz, scalar
from maxk.graph.files.text import (
    TEXT_SUFFIXES,
    line_of,
    numbered_columns,
    read_edge_list,
    read_table,
    text_kind,
)

__all__ = [
    "GRAPH_SUFFIXES",
    "HASHED",
    "TEXT_SUFFIXES",
    "Edges",
    "check_file",
    "check_finite",
    "check_indptr",
    "check_reach",
    "graph_kind",
    "in_memory",
    "line_of",
    "load_graph",
    "npz_edges",
    "numbered_columns",
    "read_edge_list",
    "read_edges",
    "read_matrix_market",
    "read_npy",
    "read_npz",
    "read_table",
    "save_graph",
    "scalar",
    "text_kind",
]
