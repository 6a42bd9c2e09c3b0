"""SciPy sparse matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch

from maxk.graph.graph import Graph
from maxk.graph.sparse import Arrays

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def is_matrix(source: object) -> bool:
    """Whether this is a SciPy sparse matrix or array."""
    return hasattr(source, "tocsr") and hasattr(source, "nnz")


def arrays(matrix: Any) -> Arrays:
    """The arrays of ``A[target, source]``, copied; CSC is read by columns, all else by rows.

    Raises:
        ValueError: the matrix is not two-dimensional.
    """
    if len(matrix.shape) != 2:
        raise ValueError(f"a sparse matrix must have shape [M, N], got {list(matrix.shape)}")
    by_columns = matrix.format == "csc"
    compressed = matrix if by_columns else matrix.tocsr()
    ids = tuple(torch.tensor(part) for part in (compressed.indptr, compressed.indices))
    kind = "by_source" if by_columns else "by_target"
    return Arrays(kind, ids, torch.tensor(compressed.data), (matrix.shape[1], matrix.shape[0]))


def to_scipy(graph: Graph, *, rows: Literal["targets", "sources"] = "targets") -> csr_array:
    """The matrix [M, N] of a graph, ``A[target, source]``; parallel edges stay apart.

    Args:
        graph: the graph; without weights its entries are 1 in float32.
        rows: "sources" for ``A[source, target]``, as SciPy's graph functions read it.

    Raises:
        TypeError: the weights are float16 or bfloat16, which SciPy does not know.

    Example:
        >>> import torch, maxk
        >>> graph = maxk.Graph.from_edge_index(torch.tensor([[0], [1]]))
        >>> maxk.interop.to_scipy(graph).toarray().tolist()
        [[0.0, 0.0], [1.0, 0.0]]
    """
    from scipy.sparse import csr_array

    if rows == "sources":
        return to_scipy(graph.transpose())
    if rows != "targets":
        raise ValueError(f"rows must be 'targets' or 'sources', got {rows!r}")
    weight = graph.weight
    data = torch.ones(graph.num_edges) if weight is None else weight.detach()
    if data.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"SciPy holds float32 or float64 weights, got {data.dtype}; cast them")
    parts = (data, graph.indices, graph.indptr)
    shape = (graph.num_dst, graph.num_src)
    return csr_array(tuple(part.cpu().numpy().copy() for part in parts), shape=shape)
