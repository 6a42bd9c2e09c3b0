"""SpMM of dense features on a GPU: cuSPARSE on a CSR matrix made once, through torch.

cuSPARSE adds the parts of a long row in whatever order they come. Where results must repeat, the
features go to the kernels of CBSR instead, with all D columns kept: slower, and the same bits.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from maxk.cbsr import column_dtype
from maxk.device.kernel import Spec, aligned, kernel
from maxk.graph.adjacency import Adjacency
from maxk.graph.csr import expand
from maxk.ops.operands_cuda import edge_indices, floats
from maxk.ops.shape import VALUE_CODES, FeatureShape
from maxk.ops.spmm import reference
from maxk.ops.spmm.matrices import Matrices

SOURCE = Path(__file__).with_name("kernel.cu")

# Node ids of the edges -> matrices over them.
_cache: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def spmm(adjacency: Adjacency, weight: Tensor | None, x: Tensor) -> Tensor:
    """Aggregates dense features, [M, D]."""
    return _product(adjacency, weight, x, adjacency.num_dst, transposed=False)


def spmm_t(adjacency: Adjacency, weight: Tensor | None, grad: Tensor) -> Tensor:
    """Gradient of dense features, [N, D]."""
    return _product(adjacency, weight, grad, adjacency.num_src, transposed=True)


def _product(
    adjacency: Adjacency, weight: Tensor | None, dense: Tensor, rows: int, *, transposed: bool
) -> Tensor:
    if adjacency.num_edges == 0 or rows == 0 or dense.shape[1] == 0:
        return dense.new_zeros(rows, dense.shape[1])
    if torch.are_deterministic_algorithms_enabled() and dense.dtype in VALUE_CODES:
        return _repeatable(adjacency, weight, dense, transposed=transposed)
    if adjacency.num_edges > adjacency.num_dst * adjacency.num_src:
        # More parallel edges than cells: cuSPARSE refuses such a matrix.
        run = reference.spmm_t if transposed else reference.spmm
        return run(adjacency, weight, dense)
    # cuSPARSE rounds the parts of a split row to 16 bits before it adds them, and scales of 16 bits
    # would be coarse (1 / 70,000 is subnormal in fp16): half precision is summed from floats.
    dtype = reference.accumulation_dtype(dense.dtype)
    with torch.no_grad():
        matrix = _matrix(adjacency, weight, dtype, transposed=transposed)
        product: Tensor = torch.sparse.mm(matrix, dense.to(dtype))
        return product.to(dense.dtype)


def _repeatable(
    adjacency: Adjacency, weight: Tensor | None, dense: Tensor, *, transposed: bool
) -> Tensor:
    # These ask this file for what cuSPARSE does faster.
    from maxk.ops.spgemm.cuda import run as spgemm
    from maxk.ops.spgemm.plan_cuda import plan_cuda
    from maxk.ops.sspmm.cuda import sspmm

    width = dense.shape[1]
    one = torch.arange(width, device=dense.device).to(column_dtype(width))
    columns = one.repeat(adjacency.num_src, 1)
    if transposed:
        return sspmm(adjacency, weight, dense, columns)
    # In floats, as cuSPARSE adds.
    plan = plan_cuda(
        adjacency, FeatureShape(width, width, dense.dtype), weighted=weight is not None,
        precision="highest", deterministic=True,
    )  # fmt: skip
    return spgemm(plan, adjacency, weight, dense, columns, width)


def _matrix(
    adjacency: Adjacency, weight: Tensor | None, dtype: torch.dtype, *, transposed: bool
) -> Tensor:
    """The weighted, scaled matrix or its transpose; kept where there are no edge weights."""
    if weight is not None:
        return _make(adjacency, weight, dtype, transposed=transposed)
    kept = _cache.get(adjacency.indices)
    if kept is None:
        kept = _cache.setdefault(adjacency.indices, Matrices())
    matrix: Tensor = kept.get(
        (transposed, dtype),
        (adjacency.row_scale, adjacency.column_scale),
        lambda: _make(adjacency, None, dtype, transposed=transposed),
        pin=torch.cuda.is_current_stream_capturing(),
    )
    return matrix


def _make(
    adjacency: Adjacency, weight: Tensor | None, dtype: torch.dtype, *, transposed: bool
) -> Tensor:
    if transposed:
        indptr, indices = adjacency.t_indptr, adjacency.t_indices
        outer, inner = adjacency.column_scale, adjacency.row_scale
        size = (adjacency.num_src, adjacency.num_dst)
    else:
        indptr, indices = adjacency.indptr, adjacency.indices
        outer, inner = adjacency.row_scale, adjacency.column_scale
        size = (adjacency.num_dst, adjacency.num_src)
    edges = adjacency.num_edges
    if weight is None:
        values = torch.ones(edges, dtype=dtype, device=indices.device)
    else:
        values = (weight[adjacency.t_edges] if transposed else weight).to(dtype)
    if outer is not None:
        values = values * outer.to(dtype)[expand(indptr, edges, torch.int64)]
    if inner is not None:
        values = values * inner.to(dtype)[indices]
    # cuSPARSE takes one integer type for both arrays.
    small = indices.dtype == torch.int32 and edges < 2**31
    ids = torch.int32 if small else torch.int64
    return torch.sparse_csr_tensor(
        indptr.to(ids), indices.to(ids), values, size, check_invariants=False
    )


def sddmm_dense(adjacency: Adjacency, x: Tensor, grad: Tensor) -> Tensor:
    """Gradient of the edge weights of a dense aggregation, [E] in the accumulation dtype."""
    if x.dtype not in VALUE_CODES:
        return reference.sddmm_dense(adjacency, x, grad)
    out = torch.empty(adjacency.num_edges, dtype=torch.float32, device=x.device)
    if out.numel() == 0 or x.shape[1] == 0:
        return out.zero_()
    schedule = adjacency.schedule
    kernel(sddmm_spec(x.shape[1], x.dtype), "plpppppp", x.device)(
        -(-schedule.num_pieces // 4), 4, schedule.pieces, schedule.num_pieces,
        edge_indices(adjacency.indices), aligned(x), aligned(grad), floats(adjacency.row_scale),
        floats(adjacency.column_scale), out,
    )  # fmt: skip
    return out


def sddmm_spec(width: int, dtype: torch.dtype) -> Spec:
    """The instance of the sampled product; four warps a block."""
    return Spec(
        SOURCE, "spmm_sddmm", (("VALUE", VALUE_CODES[dtype]), ("WIDTH", width), ("WARPS", 4))
    )
