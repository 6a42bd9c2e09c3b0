"""Sparse adjacency matrices and PyG's ``EdgeIndex`` as graphs; arrays that are sorted stay so.

A matrix is ``adj_t[t, s]``, rows targets and columns sources, as PyG's ``adj_t`` is. The classes of
PyG and torch_sparse are known by their methods, so neither library is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maxk.graph.csr import CSR, Transpose
from maxk.graph.graph import Graph, _from_edge_index

Counts = tuple[int | None, int | None]


@dataclass(frozen=True)
class Arrays:
    """What a sparse matrix or an edge list holds.

    Attributes:
        kind: "edges" [2, E] (sources, targets), "by_target" (row pointers, sources) or "by_source"
            (column pointers, targets).
        ids: the integer arrays of that kind.
        values: [E] beside the ids, or None.
        counts: (num_src, num_dst), each None where the object does not say it.
    """

    kind: str
    ids: tuple[Tensor, ...]
    values: Tensor | None
    counts: Counts

    def transpose(self) -> Arrays:
        """Every edge turned round, at no cost."""
        counts = self.counts[::-1]
        if self.kind == "edges":
            return Arrays("edges", (self.ids[0].flip(0),), self.values, counts)
        kind = "by_source" if self.kind == "by_target" else "by_target"
        return Arrays(kind, self.ids, self.values, counts)


def arrays_of(edges: Any) -> Arrays | None:
    """The arrays of a plain ``edge_index``, a torch or torch_sparse matrix; None for all else.

    Args:
        edges: ``edge_index`` [2, E], an ``EdgeIndex``, torch sparse CSR, CSC or COO [M, N], or
            ``torch_sparse.SparseTensor`` [M, N].
    """
    if is_edge_index(edges):
        return Arrays("edges", (edges.as_tensor(),), None, edges.sparse_size())
    if isinstance(edges, Tensor):
        return Arrays("edges", (edges,), None, (None, None)) if _dense(edges) else _matrix(edges)
    if is_sparse_tensor(edges):
        indptr, sources, values = edges.csr()
        return Arrays("by_target", (indptr, sources), values, (edges.size(1), edges.size(0)))
    return None


def is_edge_index(edges: object) -> bool:
    """Whether this is PyG's ``EdgeIndex``."""
    return isinstance(edges, Tensor) and hasattr(edges, "sort_order") and hasattr(edges, "get_csc")


def is_sparse_tensor(edges: object) -> bool:
    """Whether this is a ``torch_sparse.SparseTensor``."""
    return not isinstance(edges, Tensor) and all(
        hasattr(edges, name) for name in ("csr", "coo", "sparse_sizes")
    )


def _dense(edges: Tensor) -> bool:
    return edges.layout == torch.strided


def _matrix(matrix: Tensor) -> Arrays:
    if matrix.dim() != 2:
        raise ValueError(f"a sparse matrix must have shape [M, N], got {list(matrix.shape)}")
    counts = (matrix.shape[1], matrix.shape[0])
    if matrix.layout == torch.sparse_coo:
        # Entries of one position add up by the definition of the layout.
        matrix = matrix.coalesce()
        return Arrays("edges", (matrix.indices().flip(0),), _values(matrix), counts)
    if matrix.layout == torch.sparse_csr:
        ids = (matrix.crow_indices(), matrix.col_indices())
        return Arrays("by_target", ids, _values(matrix), counts)
    if matrix.layout == torch.sparse_csc:
        ids = (matrix.ccol_indices(), matrix.row_indices())
        return Arrays("by_source", ids, _values(matrix), counts)
    raise TypeError(
        f"a sparse matrix must be CSR, CSC or COO, got {matrix.layout}; call .to_sparse_csr()"
    )


def _values(matrix: Tensor) -> Tensor:
    values = matrix.values()
    if values.dim() != 1:
        raise ValueError(
            "a sparse matrix must hold one number an entry, got values of shape "
            f"{list(values.shape)}"
        )
    return values


def weight_of(values: Tensor | None) -> Tensor | None:
    """Edge weights of a matrix: None where every entry is 1 and none wants a gradient."""
    if values is None or values.requires_grad:
        return values
    if bool((values == 1).all()):
        return None
    return values if values.is_floating_point() else values.to(torch.get_default_dtype())


def graph_from(arrays: Arrays, weight: Tensor | None, num_nodes: Counts = (None, None)) -> Graph:
    """Builds the graph of some arrays; its caller's order is the order of the arrays.

    Args:
        arrays: the edges.
        weight: [E] or None.
        num_nodes: (num_src, num_dst) where the arrays do not say it.

    Raises:
        TypeError: an array has the wrong dtype.
        ValueError: the arrays disagree, or an id lies outside the graph.
    """
    num_src, num_dst = _known(arrays.counts, num_nodes)
    if arrays.kind == "by_target":
        indptr, sources = arrays.ids
        return Graph.from_csr(indptr, sources, weight, num_src)
    if arrays.kind == "by_source":
        # Rows that are sources make the graph turned round.
        indptr, targets = arrays.ids
        return Graph.from_csr(indptr, targets, weight, num_dst).transpose()
    (edge_index,) = arrays.ids
    counts: tuple[int, int] | None = None
    if num_src is not None or num_dst is not None:
        largest = int(edge_index.max()) + 1 if edge_index.numel() else 0
        counts = (largest if num_src is None else num_src, largest if num_dst is None else num_dst)
    return _from_edge_index(edge_index, counts, weight, keep_order=True)


def graph_from_edge_index(
    edges: Any, weight: Tensor | None, num_nodes: Counts = (None, None)
) -> Graph:
    """Builds the graph of PyG's ``EdgeIndex``; what it has sorted is not sorted again.

    Args:
        edges: ``EdgeIndex`` [2, E] (source, target).
        weight: [E] in the order of the columns, or None.
        num_nodes: (num_src, num_dst) where ``edges`` does not say it.

    Raises:
        ValueError: the edges are not in the order that ``edges`` declares, or an id lies outside
            the graph.
    """
    plain = edges.as_tensor()
    if not edges.is_sorted:
        return graph_from(Arrays("edges", (plain,), None, edges.sparse_size()), weight, num_nodes)
    # Where nobody says it, as without EdgeIndex: one more than the largest id of either side.
    largest = int(plain.max()) + 1 if plain.numel() else 0
    counts = _known(edges.sparse_size(), num_nodes)
    num_src, num_dst = (largest if n is None else n for n in counts)
    row = 1 if edges.is_sorted_by_col else 0
    if plain.shape[1] and bool((plain[row].diff() < 0).any()):
        raise ValueError(
            f"edge_index declares sort_order={edges.sort_order!r}, but row {row} of it falls; call "
            ".sort_by(...) or leave sort_order out"
        )
    cached = getattr(edges, "_T_perm", None) is not None
    if edges.is_sorted_by_col:
        (indptr, sources), _ = edges.get_csc()
        graph = Graph.from_csr(_padded(indptr, num_dst), sources, weight, num_src=num_src)
        if not cached:
            return graph
        (t_indptr, targets), positions = edges.get_csr()
        back = Transpose(
            _padded(t_indptr, num_src), targets.to(graph.indices.dtype), positions.long()
        )
        return Graph(CSR(graph.indptr, graph.indices, num_src, transpose=back), weight)
    (t_indptr, targets), _ = edges.get_csr()
    if not cached:
        reverse = Graph.from_csr(_padded(t_indptr, num_src), targets, weight, num_src=num_dst)
        return reverse.transpose()
    (indptr, sources), order = edges.get_csc()
    order = order.long()
    graph = Graph.from_csr(_padded(indptr, num_dst), sources, num_src=num_src)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.shape[0], device=order.device)
    back = Transpose(_padded(t_indptr, num_src), targets.to(graph.indices.dtype), inverse)
    csr = CSR(graph.indptr, graph.indices, num_src, order=order, transpose=back)
    return Graph(csr, weight)


def _known(declared: Counts, otherwise: Counts) -> Counts:
    """The counts that an object declares, and the caller's where it declares none."""
    num_src, num_dst = (n if n is not None else m for n, m in zip(declared, otherwise, strict=True))
    return num_src, num_dst


def _padded(indptr: Tensor, rows: int) -> Tensor:
    """Row pointers of at least ``rows`` rows; those that were missing are empty."""
    missing = rows + 1 - indptr.shape[0]
    indptr = indptr.long()
    return indptr if missing <= 0 else torch.cat([indptr, indptr[-1:].expand(missing)])
