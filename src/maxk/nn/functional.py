"""What layers do to features without parameters of their own, dense, sparse or CBSR."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maxk.cbsr import CBSR
from maxk.graph.cache import graph_of_matrix
from maxk.ops.aggregate import aggregate
from maxk.ops.autograd import calls
from maxk.ops.contract import check_added
from maxk.ops.maxk.op import to_dense

_is_tracing: Callable[[], bool] = torch.jit._trace.is_tracing
#: What :func:`aligned` writes on a tensor; its zeros between the rows are nobody else's.
_ALIGNED = "_maxk_rows_are_aligned"


def check_caller(module: nn.Module) -> None:
    """Refuses callers that would lose what the kernels compute.

    A DataParallel replica sees a share of the rows, and the edges between shares are lost.
    ``torch.jit.trace`` and ONNX record PyTorch's own operations only.

    Raises:
        RuntimeError: naming what to use instead.
    """
    if getattr(module, "_is_replica", False):
        raise RuntimeError(
            f"{type(module).__name__} cannot run under torch.nn.DataParallel on several GPUs: it "
            "splits the nodes and loses the edges between the parts; use one GPU, or "
            "torch.nn.parallel.DistributedDataParallel with a graph for each process"
        )
    onnx = torch.compiler.is_compiling() and torch.onnx.is_in_onnx_export()
    if onnx or _is_tracing():
        caller = "torch.onnx.export" if torch.onnx.is_in_onnx_export() else "torch.jit.trace"
        raise RuntimeError(
            f"{caller} cannot record {type(module).__name__}, whose operations are maxk's own; use "
            "maxk.interop.export_torch(model, x, graph), or record the PyTorch and PyG network "
            "maxk.interop.to_pyg_model(model)"
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

    Raises:
        ValueError: x has another number of rows than y, or of columns than W.
    """
    if isinstance(x, CBSR):
        return calls().add_linear(y, x.values, x.columns, x.width, weight)
    _check_dense(y, x, weight.shape[1])
    if y.dtype == x.dtype == weight.dtype:
        return y.addmm_(x, weight.t())
    return y + F.linear(x, weight)


def add_scaled(y: Tensor, x: CBSR | Tensor, scale: Tensor) -> Tensor:
    """Returns y + scale x, in place where nothing else needs y.

    Args:
        y: [N, D], which no other operation's gradient reads.
        x: [N, D].
        scale: [1].

    Raises:
        ValueError: x has another number of rows or columns than y.
    """
    if isinstance(x, CBSR):
        return calls().add(y, x.values, x.columns, x.width, scale)
    _check_dense(y, x, y.shape[1])
    return y + scale.to(x.dtype) * x


def _check_dense(y: Tensor, x: Tensor, width: int) -> None:
    # PyTorch would repeat a single row or column as often as it takes.
    if x.dim() != 2:
        raise ValueError(f"features must have shape [N, D], got {list(x.shape)}")
    check_added(y, x.shape[0], x.shape[1], width)


class _Drawing(threading.local):
    generator: torch.Generator | None = None


_drawing = _Drawing()


@contextlib.contextmanager
def dropout_from(generator: torch.Generator) -> Iterator[None]:
    """Draws dropout on the CPU from a generator, in this thread and outside ``torch.compile``.

    The masks are those that the process's generator gives from the same state.
    """
    before = _drawing.generator
    _drawing.generator = generator
    try:
        yield
    finally:
        _drawing.generator = before


def dropout(x: CBSR | Tensor, p: float, training: bool) -> CBSR | Tensor:
    """Dropout; on CBSR it acts on the k stored values, so the row stays compressed."""
    if p == 0.0 or not training:
        return x
    if isinstance(x, CBSR):
        return x.with_values(drop(x.values, p))
    return drop(x, p)


def drop(x: Tensor, p: float) -> Tensor:
    """Dropout of a dense tensor, in training."""
    # The order matters: the compiler folds the first question and never sees the second.
    own = not torch.compiler.is_compiling() and _drawing.generator is not None
    if not own or x.device.type != "cpu" or p == 0.0 or not x.numel():
        return F.dropout(x, p)
    # What F.dropout does on the CPU, but for its generator, which cannot be given.
    keep = torch.empty_like(x).bernoulli_(1 - p, generator=_drawing.generator)
    return x * keep.div_(1 - p)


def aligned(x: Tensor) -> Tensor:
    """The same features in memory whose rows start on 16-byte boundaries, where x is on a GPU.

    cuBLAS multiplies rows of any other length two to three times slower: on an H200, TF32, [232965,
    602] times 256 columns takes 0.73 ms, with rows of 604 floats 0.25 ms. :func:`linear` knows such
    a tensor again; to everything else it is an ordinary view.

    Args:
        x: [N, F], dense or sparse.

    Returns:
        x itself on the CPU, where it is sparse, or where its rows are aligned already.
    """
    if not x.is_cuda or x.layout != torch.strided or x.dim() != 2 or not x.is_floating_point():
        return x
    step = 16 // x.element_size()
    width = -(-x.shape[1] // step) * step
    if width == x.shape[1] or x.requires_grad:
        return x
    rows = x.new_zeros(x.shape[0], width)[:, : x.shape[1]].copy_(x)
    setattr(rows, _ALIGNED, True)
    return rows


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns x W^T + b for dense features [N, F] or a torch sparse CSR matrix [N, F].

    A sparse matrix (a bag of words) is a bipartite graph from its columns to its rows, and the
    product an aggregation of W's columns; no dense [N, F] ever exists.
    """
    if x.layout == torch.strided:
        if not torch.compiler.is_compiling() and getattr(x, _ALIGNED, False):
            # The zeros between the rows become columns that meet zeros of the weight.
            width = x.stride(0)
            weight = F.pad(weight, (0, width - x.shape[1]))
            x = x.as_strided((x.shape[0], width), (width, 1))
        return F.linear(x, weight, bias)
    if x.layout != torch.sparse_csr:
        raise TypeError(f"x must be dense or sparse CSR, got {x.layout}; call x.to_sparse_csr()")
    y = aggregate(graph_of_matrix(x), weight.t(), reduce="sum")
    return y if bias is None else y + bias
