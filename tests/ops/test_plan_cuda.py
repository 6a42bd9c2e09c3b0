"""What the GPU plans choose; no GPU is needed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from maxk.device.properties import H200
from maxk.graph.schedule import PIECE_EDGES
from maxk.ops.maxk.plan_cuda import plan_cuda as plan_maxk
from maxk.ops.shape import FeatureShape
from maxk.ops.spgemm.plan_cuda import plan_cuda as plan_spgemm
from maxk.ops.spgemm.plan_cuda import word_macros
from maxk.ops.sspmm.plan_cuda import plan_cuda as plan_sspmm


@dataclass(frozen=True)
class Counts:
    num_src: int
    num_dst: int
    num_edges: int


DENSE = Counts(232965, 232965, 101283392)
WIDE = Counts(2449029, 2449029, 123718280)
SPARSE = Counts(89250, 89250, 899756)


def shape(k: int = 32, width: int = 256, dtype: torch.dtype = torch.float32) -> FeatureShape:
    return FeatureShape(width, k, dtype)


def test_precision_words_choose() -> None:
    assert plan_spgemm(DENSE, shape(), precision="highest").kernel == "float"
    assert plan_spgemm(DENSE, shape(), precision="high").kernel == "fixed"
    assert plan_spgemm(DENSE, shape(), precision="medium").kernel == "fixed"
    assert plan_spgemm(DENSE, shape(), precision="high", weighted=True).kernel == "float"
    assert plan_spgemm(DENSE, shape(width=4096), precision="high").kernel == "fixed"
    assert plan_spgemm(DENSE, shape(width=4097), precision="high").kernel == "float"


def test_current_precision_is_the_default() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert plan_spgemm(DENSE, shape()).kernel == "fixed"
        torch.set_float32_matmul_precision("highest")
        assert plan_spgemm(DENSE, shape()).kernel == "float"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("graph", [DENSE, WIDE, SPARSE])
def test_dense_where_maxk_loses(graph: Counts) -> None:
    assert plan_spgemm(graph, shape(256), precision="high").kernel == "dense"
    assert plan_spgemm(graph, shape(256), precision="highest").kernel == "dense"
    assert plan_sspmm(graph, shape(192), H200, deterministic=False).kernel == "dense"
    for k in (2, 8, 32, 64):
        assert plan_spgemm(graph, shape(k), precision="high").kernel == "fixed"
        assert plan_sspmm(graph, shape(k), H200, deterministic=False).kernel == "scatter"


def test_repeatable_plans_never_add_in_any_order() -> None:
    for k in (8, 64, 256):
        assert plan_sspmm(DENSE, shape(k), H200, deterministic=True).kernel == "gather"
        plan = plan_spgemm(DENSE, shape(k), precision="highest", deterministic=True)
        assert plan.kernel == "float"


def test_panels_where_sums_outgrow_the_cache() -> None:
    def panels(graph: Counts, k: int) -> int:
        return plan_sspmm(graph, shape(k), H200, deterministic=False).panels

    assert [panels(DENSE, k) for k in (8, 32, 64, 128)] == [1, 1, 2, 4]
    assert [panels(WIDE, k) for k in (2, 8, 32)] == [1, 3, 6]
    assert [panels(SPARSE, k) for k in (8, 32, 64, 128)] == [1, 1, 1, 2]


@pytest.mark.parametrize("width", [1, 2, 256, 257, 512, 513, 1000, 4096])
def test_words_hold_every_column_and_every_sum(width: int) -> None:
    split = dict(word_macros(width))
    bits, limit = split["COLUMN_BITS"], split["LIMIT"]
    assert width - 1 < 1 << bits
    assert limit < 1 << (31 - bits)
    assert limit * PIECE_EDGES < 1 << 31
    assert limit >= (1 << 19) - 1


@pytest.mark.parametrize("width", [1, 33, 256, 384, 1000, 4096, 8192, 40000])
def test_shared_memory_fits_every_gpu(width: int) -> None:
    for graph in (DENSE, SPARSE):
        for k in {1, min(32, width), width}:
            for precision in ("high", "highest"):
                plan = plan_spgemm(graph, shape(k, width), precision=precision, deterministic=True)
                assert plan.shared_bytes <= 99 * 1024
                lanes = 32 // plan.copies
                assert plan.copies == 1 or -(-k // lanes) <= 8
            backward = plan_sspmm(graph, shape(k, width), H200, deterministic=False)
            assert backward.kernel == "dense" or backward.shared_bytes(width) <= 99 * 1024


def test_vector_reductions_need_hopper() -> None:
    from dataclasses import replace

    ampere = replace(H200, capability=(8, 0))
    assert plan_sspmm(DENSE, shape(32), H200, deterministic=False).vector == 4
    assert plan_sspmm(DENSE, shape(6), H200, deterministic=False).vector == 2
    assert plan_sspmm(DENSE, shape(7), H200, deterministic=False).vector == 1
    assert plan_sspmm(DENSE, shape(32), ampere, deterministic=False).vector == 1


def test_what_has_no_kernel() -> None:
    double = shape(dtype=torch.float64)
    assert plan_maxk(double).kernel == "reference"
    assert plan_spgemm(DENSE, double).kernel == "dense"
    assert plan_sspmm(DENSE, double, H200).kernel == "dense"
    assert plan_maxk(shape(32, 2048)).kernel == "registers"
    assert plan_maxk(shape(32, 2049)).kernel == "stream"
