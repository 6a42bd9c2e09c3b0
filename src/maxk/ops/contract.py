"""What the operands of an operation must agree on: shapes, dtypes and devices.

Kernels read and write wherever these lead them. No number is read, so nothing waits for a GPU, and
the same check serves eager calls, registered operations and what a compiler traces.
"""

from __future__ import annotations

import torch
from torch import Tensor

from maxk.cbsr import check_columns, check_entries
from maxk.core.checks import check_k, check_matrix, check_same_device
from maxk.graph.adjacency import Adjacency


def check_select(x: Tensor, k: int) -> None:
    """MaxK: a matrix and a k that its rows hold."""
    check_k(k, check_matrix(x, "x").shape[1])


def check_norm_select(x: Tensor, weight: Tensor, bias: Tensor, k: int) -> None:
    """LayerNorm and MaxK: one gain and one bias per column."""
    check_select(x, k)
    width = x.shape[1]
    for name, operand in (("weight", weight), ("bias", bias)):
        check_same_device(x.device, "x", operand.device, name)
        if operand.shape != (width,):
            raise ValueError(f"{name} must have shape [{width}], got {list(operand.shape)}")


def check_norm_select_grad(
    grad: Tensor, columns: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor
) -> None:
    """Gradient of LayerNorm and MaxK: one gradient per entry, two moments per row."""
    rows, width = check_matrix(x, "x").shape
    check_entries(grad, columns, width)
    _check_rows("columns", columns.shape[0], "x", rows)
    _check_dtypes("grad", grad, "x", x)
    for name, operand, size in (
        ("mean", mean, rows),
        ("rstd", rstd, rows),
        ("weight", weight, width),
    ):
        check_same_device(x.device, "x", operand.device, name)
        if operand.shape != (size,):
            raise ValueError(f"{name} must have shape [{size}], got {list(operand.shape)}")


def check_scatter(values: Tensor, columns: Tensor, width: int) -> None:
    """CBSR entries to dense."""
    check_entries(values, columns, width)


def check_pick(dense: Tensor, columns: Tensor) -> None:
    """Dense to CBSR entries: as many rows on both sides."""
    check_columns(columns, check_matrix(dense, "dense").shape[1])
    _check_rows("columns", columns.shape[0], "dense", dense.shape[0])
    check_same_device(dense.device, "dense", columns.device, "columns")


def check_add(y: Tensor, values: Tensor, columns: Tensor, width: int, scale: Tensor) -> None:
    """Sum of a dense matrix and CBSR features: as many rows and columns on both sides."""
    check_entries(values, columns, width)
    check_added(check_matrix(y, "y"), values.shape[0], width, y.shape[1])
    check_same_device(y.device, "the result", values.device, "the features added to it")
    check_same_device(y.device, "the result", scale.device, "scale")
    if scale.numel() != 1:
        raise ValueError(f"scale must hold one number, got shape {list(scale.shape)}")


def check_add_linear(
    y: Tensor, values: Tensor, columns: Tensor, width: int, weight: Tensor
) -> None:
    """Sum of a dense matrix and CBSR features times a weight [out, D]."""
    check_entries(values, columns, width)
    check_matrix(weight, "weight")
    check_added(check_matrix(y, "y"), values.shape[0], width, weight.shape[1])
    check_same_device(y.device, "the result", values.device, "the features added to it")


def check_added(y: Tensor, rows: int, width: int, expected: int) -> None:
    """Features [rows, width] can be added to y by rows, where ``expected`` columns are read.

    Raises:
        ValueError: naming both sizes.
    """
    if rows != y.shape[0]:
        raise ValueError(
            f"features that are added to a result of {y.shape[0]} rows must have {y.shape[0]} "
            f"rows, got {rows}; on a bipartite graph give the features of both sides as a pair, "
            "x = (x_src, x_dst), or (x_src, None) to add none"
        )
    if width != expected:
        raise ValueError(
            f"features of the target nodes must have {expected} columns here, got {width}; give "
            "features of that width, or make the layer for theirs"
        )


def check_graph(
    tensors: list[Tensor], row_scale: Tensor | None, column_scale: Tensor | None
) -> None:
    """The arrays of a graph as a registered operation takes them, see Adjacency.tensors."""
    if len(tensors) != 5:
        raise ValueError(
            "graph must hold indptr, indices, and indptr, indices, edges of the transpose, "
            f"got {len(tensors)} tensors"
        )
    indptr, indices, t_indptr, t_indices, t_edges = tensors
    for name, tensor in zip(_GRAPH, tensors, strict=True):
        if tensor.dim() != 1 or tensor.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"{name} of the graph must be int32 or int64 of one dimension, got {tensor.dtype} "
                f"{list(tensor.shape)}"
            )
        check_same_device(indptr.device, "indptr", tensor.device, name)
    if not indices.shape == t_indices.shape == t_edges.shape:
        raise ValueError(
            "the graph and its transpose must have equally many edges, got "
            f"{indices.shape[0]}, {t_indices.shape[0]} and {t_edges.shape[0]}"
        )
    for name, scale, bounds in (
        ("row_scale", row_scale, indptr), ("column_scale", column_scale, t_indptr)
    ):  # fmt: skip
        if scale is not None:
            check_same_device(indptr.device, "indptr", scale.device, name)
            if scale.shape != (bounds.shape[0] - 1,):
                raise ValueError(
                    f"{name} must have shape [{bounds.shape[0] - 1}], got {list(scale.shape)}"
                )


_GRAPH = ("indptr", "indices", "indptr", "indices", "edges")


def check_aggregate(
    adjacency: Adjacency, weight: Tensor | None, values: Tensor, columns: Tensor | None, width: int
) -> None:
    """Forward product: one row of features per source node."""
    _check_features(adjacency, values, columns, width)
    _check_weight(adjacency, weight, values)


def check_aggregate_t(
    adjacency: Adjacency, weight: Tensor | None, grad: Tensor, columns: Tensor | None
) -> None:
    """Transposed product: one row of gradients per target node, of columns per source node."""
    _check_grad(adjacency, grad)
    if columns is not None:
        check_columns(columns, grad.shape[1])
        check_same_device(grad.device, "grad", columns.device, "columns")
        _check_rows("columns", columns.shape[0], "source nodes", adjacency.num_src)
    _check_weight(adjacency, weight, grad)


def check_edge_products(
    adjacency: Adjacency, values: Tensor, columns: Tensor | None, grad: Tensor
) -> None:
    """Products per edge: one row of features per source node, of gradients per target node."""
    _check_grad(adjacency, grad)
    _check_features(adjacency, values, columns, grad.shape[1])
    _check_dtypes("values", values, "grad", grad)


def _check_features(
    adjacency: Adjacency, values: Tensor, columns: Tensor | None, width: int
) -> None:
    if columns is not None:
        check_entries(values, columns, width)
    elif check_matrix(values, "features").shape[1] != width:
        raise ValueError(f"features must have {width} columns, got {values.shape[1]}")
    _check_rows("features", values.shape[0], "source nodes", adjacency.num_src)
    check_same_device(values.device, "features", adjacency.device, "graph")


def _check_grad(adjacency: Adjacency, grad: Tensor) -> None:
    _check_rows("grad", check_matrix(grad, "grad").shape[0], "target nodes", adjacency.num_dst)
    check_same_device(grad.device, "grad", adjacency.device, "graph")


def _check_weight(adjacency: Adjacency, weight: Tensor | None, features: Tensor) -> None:
    if weight is not None:
        if weight.shape != (adjacency.num_edges,):
            raise ValueError(
                f"edge weights must have shape [{adjacency.num_edges}], got {list(weight.shape)}"
            )
        check_same_device(features.device, "features", weight.device, "edge weights")


def _check_rows(name: str, rows: int, other: str, expected: int) -> None:
    if rows != expected:
        raise ValueError(f"{name} must have one row per row of {other}, {expected}, got {rows}")


def _check_dtypes(name: str, tensor: Tensor, other: str, expected: Tensor) -> None:
    if tensor.dtype != expected.dtype:
        raise TypeError(
            f"{name} and {other} must share one dtype, got {tensor.dtype} and {expected.dtype}"
        )
