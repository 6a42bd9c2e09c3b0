"""What layers do to features without parameters of their own, dense, sparse or CBSR."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maxk.cbsr import CBSR
from maxk.graph.cache import graph_of_matrix
from maxk.ops.aggregate import aggregate
from maxk.ops.autograd import calls
from maxk.ops.maxk.op import to_dense


def refuse_replica(module: nn.Module) -> None:
    """Refuses to run as one of several DataParallel replicas.

    A replica sees a share of the rows, and the edges between shares are lost.

    Raises:
        RuntimeError: naming what to use instead.
    """
    if getattr(module, "_is_replica", False):
        raise RuntimeError(
            f"{type(module).__name__} cannot run under torch.nn.DataParallel on several GPUs: it "
            "splits the nodes and loses the edges between the parts; use one GPU, or "
            "torch.nn.parallel.DistributedDataParallel with a graph for each process"
        )


def dense(x: CBSR | Tensor) -> Tensor:
    """The dense form [N, D] of features."""
    return to_dense(x) if isinstance(x, CBSR) else x


def add_linear(y: Tensor, x: CBSR | Tensor, weight: Tensor) -> Tensor:
    """Returns y + x W^T, in place where nothing else needs y.

    Of CBSR only the k entries are kept for the gradient.

    Args:
        y: [N, out], which no other operation's gradient reads.
        x: [N, D].
        weight: W, [out, D].
    """
    if isinstance(x, CBSR):
        return calls().add_linear(y, x.values, x.columns, weight)
    if y.dtype == x.dtype == weight.dtype:
        return y.addmm_(x, weight.t())
    return y + F.linear(x, weight)


def add_scaled(y: Tensor, x: CBSR | Tensor, scale: Tensor) -> Tensor:
    """Returns y + scale x, in place where nothing else needs y.

    Args:
        y: [N, D], which no other operation's gradient reads.
        x: [N, D].
        scale: [1].
    """
    if isinstance(x, CBSR):
        return calls().add(y, x.values, x.columns, scale)
    return y + scale.to(x.dtype) * x


def dropout(x: CBSR | Tensor, p: float, training: bool) -> CBSR | Tensor:
    """Dropout; on CBSR it acts on the k stored values, so the row stays compressed."""
    if p == 0.0 or not training:
        return x
    if isinstance(x, CBSR):
        return x.with_values(F.dropout(x.values, p, training))
    return F.dropout(x, p, training)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns x W^T + b for dense features [N, F] or a torch sparse CSR matrix [N, F].

    A sparse matrix (a bag of words) is a bipartite graph from its columns to its rows, and the
    product an aggregation of W's columns; no dense [N, F] ever exists.
    """
    if x.layout == torch.strided:
        return F.linear(x, weight, bias)
    if x.layout != torch.sparse_csr:
        raise TypeError(f"x must be dense or sparse CSR, got {x.layout}; call x.to_sparse_csr()")
    y = aggregate(graph_of_matrix(x), weight.t(), reduce="sum")
    return y if bias is None else y + bias
