"""Aggregation and its gradients on a GPU, against the same sums in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from maxk.cbsr import column_dtype
from maxk.graph.adjacency import Adjacency
from maxk.graph.csr import from_edges
from maxk.ops.spgemm.plan_cuda import CudaPlan as CudaForward
from maxk.ops.sspmm.plan_cuda import CudaPlan as CudaBackward

pytestmark = pytest.mark.gpu

# Norm of the error over norm of the result; fixed point and float32 sums lie far below, 16-bit
# results are rounded once.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 4e-3, torch.float16: 6e-4, torch.float64: 1e-12}


def make(
    sources: int, targets: int, edges: int, *, scaled: bool = False, hub: int = 0, seed: int = 0
) -> Adjacency:
    """A rectangular random graph; ``hub`` more edges end in target 0."""
    g = torch.Generator("cuda").manual_seed(seed)
    source = torch.randint(max(sources, 1), (edges + hub,), device="cuda", generator=g)
    target = torch.randint(max(targets, 1), (edges,), device="cuda", generator=g)
    target = torch.cat([target, target.new_zeros(hub)])
    csr = from_edges(torch.stack([source, target]), sources, targets, keep_order=False)
    row = torch.rand(targets, device="cuda", generator=g) + 0.5 if scaled else None
    column = torch.rand(sources, device="cuda", generator=g) + 0.5 if scaled else None
    return Adjacency(csr, row, column)


def features(
    rows: int, width: int, k: int, dtype: torch.dtype, seed: int = 1
) -> tuple[Tensor, Tensor]:
    """Random CBSR entries in any order."""
    g = torch.Generator("cuda").manual_seed(seed)
    columns = torch.rand(rows, width, device="cuda", generator=g).argsort(dim=1)[:, :k]
    values = torch.randn(rows, k, device="cuda", generator=g).to(dtype)
    return values, columns.to(column_dtype(width)).contiguous()


def truth(adjacency: Adjacency, weight: Tensor | None) -> Tensor:
    """The matrix itself, dense, float64."""
    a = torch.zeros(adjacency.num_dst, adjacency.num_src, dtype=torch.float64, device="cuda")
    rows = adjacency.csr.rows().long()
    w = torch.ones(adjacency.num_edges, dtype=torch.float64, device="cuda")
    if weight is not None:
        w = weight.double()
    a.index_put_((rows, adjacency.indices.long()), w, accumulate=True)
    if adjacency.row_scale is not None:
        a *= adjacency.row_scale.double()[:, None]
    if adjacency.column_scale is not None:
        a *= adjacency.column_scale.double()
    return a


def close(got: Tensor, expected: Tensor, dtype: torch.dtype, slack: float = 1.0) -> None:
    assert got.shape == expected.shape
    assert torch.isfinite(got).all()
    error = (got.double() - expected).norm() / expected.norm().clamp(min=1e-30)
    assert float(error) <= slack * TOLERANCE[dtype]


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["highest", "high", "medium"])
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


@pytest.fixture(params=[False, True], ids=["fast", "repeatable"])
def deterministic(request: pytest.FixtureRequest) -> Iterator[bool]:
    torch.use_deterministic_algorithms(request.param, warn_only=True)
    yield request.param
    torch.use_deterministic_algorithms(False)


CASES: list[dict[str, Any]] = [
    {"graph": (50, 40, 600), "width": width, "k": k}
    for width, k in [
        (1, 1), (2, 2), (5, 3), (33, 8), (33, 33), (64, 2), (100, 7), (256, 1), (256, 6), (256, 8),
        (256, 16), (256, 32), (256, 64), (256, 96), (256, 192), (256, 256), (257, 32), (384, 32),
        (512, 48), (1000, 32), (1000, 1000), (4096, 32), (4097, 9), (9000, 40), (33000, 12),
    ]
] + [
    {"graph": (300, 200, 20000), "width": 256, "k": 32, "hub": 3000},
    {"graph": (300, 200, 20000), "width": 48, "k": 12, "hub": 600},
    {"graph": (1, 1, 5), "width": 16, "k": 4},
    {"graph": (1000, 3, 700), "width": 256, "k": 32},
    {"graph": (3, 1000, 700), "width": 256, "k": 32},
]  # fmt: skip
IDS = [f"{c['graph']}-{c['width']}-{c['k']}-{c.get('hub', 0)}" for c in CASES]


@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.parametrize("scaled", [False, True], ids=["sum", "scaled"])
def test_forward(case: dict[str, Any], scaled: bool, precision: str) -> None:
    from maxk.ops.spgemm import cuda

    adjacency = make(*case["graph"], scaled=scaled, hub=case.get("hub", 0))
    width, k = case["width"], case["k"]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        values, columns = features(adjacency.num_src, width, k, dtype)
        dense = torch.zeros(adjacency.num_src, width, dtype=torch.float64, device="cuda")
        dense.scatter_(1, columns.long(), values.double())
        got = cuda.spgemm(adjacency, None, values, columns, width)
        assert got.dtype == dtype
        close(got, truth(adjacency, None) @ dense, dtype, 4.0 if precision != "highest" else 1.0)
        assert torch.equal(got, cuda.spgemm(adjacency, None, values, columns, width))


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_weighted_forward(case: dict[str, Any]) -> None:
    from maxk.ops.spgemm import cuda

    adjacency = make(*case["graph"], scaled=True, hub=case.get("hub", 0))
    weight = torch.randn(adjacency.num_edges, device="cuda")
    values, columns = features(adjacency.num_src, case["width"], case["k"], torch.float32)
    dense = torch.zeros(adjacency.num_src, case["width"], dtype=torch.float64, device="cuda")
    dense.scatter_(1, columns.long(), values.double())
    got = cuda.spgemm(adjacency, weight, values, columns, case["width"])
    close(got, truth(adjacency, weight) @ dense, torch.float32)
    assert torch.equal(got, cuda.spgemm(adjacency, weight, values, columns, case["width"]))


@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.parametrize("weighted", [False, True], ids=["ones", "weighted"])
def test_backward(case: dict[str, Any], weighted: bool, deterministic: bool) -> None:
    from maxk.ops.sspmm import cuda

    adjacency = make(*case["graph"], scaled=weighted, hub=case.get("hub", 0))
    weight = torch.randn(adjacency.num_edges, device="cuda") if weighted else None
    width, k = case["width"], case["k"]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        _, columns = features(adjacency.num_src, width, k, dtype)
        grad = torch.randn(adjacency.num_dst, width, device="cuda").to(dtype)
        expected = (truth(adjacency, weight).T @ grad.double()).gather(1, columns.long())
        got = cuda.sspmm(adjacency, weight, grad, columns)
        assert got.dtype == dtype
        close(got, expected, dtype)
        if deterministic:
            assert torch.equal(got, cuda.sspmm(adjacency, weight, grad, columns))


FORWARD = [
    CudaForward(kernel, "asked for", copies, warps, loads, 256, blocks, pieces)
    for kernel, copies, warps, loads, blocks, pieces in [
        ("fixed", 1, 2, 4, 20, 4), ("fixed", 2, 2, 4, 20, 2), ("fixed", 4, 4, 2, 8, 1),
        ("float", 1, 4, 16, 8, 1), ("float", 2, 2, 8, 20, 1), ("float", 4, 2, 8, 20, 1),
        ("dense", 1, 1, 1, 1, 1),
    ]
]  # fmt: skip


@pytest.mark.parametrize("plan", FORWARD, ids=str)
@pytest.mark.parametrize("k", [2, 5, 16, 32, 64, 96, 128, 192])
def test_every_forward_plan_is_right(k: int, plan: CudaForward) -> None:
    from maxk.ops.spgemm import cuda

    adjacency = make(300, 203, 9000, scaled=True, hub=1500)
    values, columns = features(300, 256, k, torch.float32)
    dense = torch.zeros(300, 256, dtype=torch.float64, device="cuda")
    dense.scatter_(1, columns.long(), values.double())
    got = cuda.run(plan, adjacency, None, values, columns, 256)
    close(got, truth(adjacency, None) @ dense, torch.float32)


BACKWARD = [
    CudaBackward("scatter", "asked for", vector, 2, unroll, staged, blocks, panels)
    for vector, unroll, staged, blocks, panels in [
        (1, 2, True, 20, 1), (2, 4, True, 16, 1), (4, 4, True, 16, 3), (4, 2, False, 20, 5),
    ]
]  # fmt: skip
BACKWARD += [CudaBackward("gather", "asked for", staged=False), CudaBackward("dense", "asked for")]


@pytest.mark.parametrize("plan", BACKWARD, ids=str)
@pytest.mark.parametrize("k", [4, 32, 64, 96, 192])
@pytest.mark.parametrize("weighted", [False, True], ids=["ones", "weighted"])
def test_every_backward_plan_is_right(k: int, plan: CudaBackward, weighted: bool) -> None:
    from maxk.ops.sspmm import cuda

    adjacency = make(300, 203, 9000, scaled=True, hub=1500)
    weight = torch.randn(adjacency.num_edges, device="cuda") if weighted else None
    _, columns = features(300, 256, k, torch.float32)
    grad = torch.randn(203, 256, device="cuda")
    expected = (truth(adjacency, weight).T @ grad.double()).gather(1, columns.long())
    close(cuda.run(plan, adjacency, weight, grad, columns), expected, torch.float32)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_gradient_of_weights(case: dict[str, Any]) -> None:
    from maxk.ops.spmm import cuda as dense_cuda
    from maxk.ops.sspmm import cuda

    adjacency = make(*case["graph"], scaled=True, hub=case.get("hub", 0))
    width, k = case["width"], case["k"]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        values, columns = features(adjacency.num_src, width, k, dtype)
        grad = torch.randn(adjacency.num_dst, width, device="cuda").to(dtype)
        dense = torch.zeros(adjacency.num_src, width, dtype=dtype, device="cuda")
        dense.scatter_(1, columns.long(), values)
        rows = adjacency.csr.rows().long()
        expected = (dense.double()[adjacency.indices.long()] * grad.double()[rows]).sum(1)
        expected *= adjacency.row_scale.double()[rows]  # type: ignore[union-attr]
        expected *= adjacency.column_scale.double()[adjacency.indices.long()]  # type: ignore[union-attr]
        close(cuda.sddmm(adjacency, values, columns, grad), expected, torch.float32)
        close(dense_cuda.sddmm_dense(adjacency, dense, grad), expected, torch.float32)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_dense(dtype: torch.dtype, weighted: bool) -> None:
    from maxk.ops.spmm import cuda

    adjacency = make(70, 50, 900, scaled=True)
    weight = torch.randn(900, device="cuda") if weighted else None
    x, grad = (torch.randn(n, 40, device="cuda").to(dtype) for n in (70, 50))
    # Scales are float32 numbers, also beside float64 features.
    close(cuda.spmm(adjacency, weight, x), truth(adjacency, weight) @ x.double(), dtype)
    close(cuda.spmm_t(adjacency, weight, grad), truth(adjacency, weight).T @ grad.double(), dtype)
    plain = make(70, 50, 900)
    close(cuda.spmm(plain, weight, x), truth(plain, weight) @ x.double(), dtype, 4.0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [1, 33, 256, 300])
def test_dense_repeats(
    width: int, dtype: torch.dtype, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuSPARSE, which splits long rows and promises no order, is not asked."""
    from maxk.ops.spmm import cuda

    adjacency = make(300, 200, 20000, scaled=True, hub=3000)
    weight = torch.randn(adjacency.num_edges, device="cuda") if weighted else None
    x, grad = (torch.randn(n, width, device="cuda").to(dtype) for n in (300, 200))
    monkeypatch.setattr(torch.sparse, "mm", None)
    torch.use_deterministic_algorithms(True)
    try:
        forward, backward = (
            [run(adjacency, weight, features) for _ in range(2)]
            for run, features in ((cuda.spmm, x), (cuda.spmm_t, grad))
        )
    finally:
        torch.use_deterministic_algorithms(False)
    close(forward[0], truth(adjacency, weight) @ x.double(), dtype)
    close(backward[0], truth(adjacency, weight).T @ grad.double(), dtype)
    assert torch.equal(*forward)
    assert torch.equal(*backward)


def test_float64() -> None:
    from maxk.ops.spgemm import cuda as forward
    from maxk.ops.sspmm import cuda as backward

    adjacency = make(70, 50, 900)
    values, columns = features(70, 40, 7, torch.float64)
    dense = torch.zeros(70, 40, dtype=torch.float64, device="cuda").scatter_(
        1, columns.long(), values
    )
    close(
        forward.spgemm(adjacency, None, values, columns, 40),
        truth(adjacency, None) @ dense,
        torch.float64,
    )
    grad = torch.randn(50, 40, dtype=torch.float64, device="cuda")
    expected = (truth(adjacency, None).T @ grad).gather(1, columns.long())
    close(backward.sspmm(adjacency, None, grad, columns), expected, torch.float64)


@pytest.mark.parametrize("shape", [(0, 0, 0), (5, 0, 0), (0, 5, 0), (4, 4, 0)], ids=str)
def test_nothing_to_add(shape: tuple[int, int, int]) -> None:
    from maxk.ops.spgemm import cuda as forward
    from maxk.ops.spmm import cuda as dense
    from maxk.ops.sspmm import cuda as backward

    adjacency = make(*shape)
    values = torch.randn(shape[0], 3, device="cuda")
    columns = torch.tensor([0, 4, 7], dtype=torch.uint8, device="cuda").repeat(shape[0], 1)
    grad = torch.randn(shape[1], 8, device="cuda")
    x = torch.randn(shape[0], 8, device="cuda")
    assert torch.equal(forward.spgemm(adjacency, None, values, columns, 8), torch.zeros_like(grad))
    assert torch.equal(backward.sspmm(adjacency, None, grad, columns), torch.zeros_like(values))
    assert backward.sddmm(adjacency, values, columns, grad).shape == (0,)
    assert torch.equal(dense.spmm(adjacency, None, x), torch.zeros_like(grad))
    assert torch.equal(dense.spmm_t(adjacency, None, grad), torch.zeros_like(x))
    assert dense.sddmm_dense(adjacency, x, grad).shape == (0,)


def test_empty_rows_are_written() -> None:
    from maxk.ops.spgemm import cuda

    adjacency = make(20, 3000, 100)
    values, columns = features(20, 64, 8, torch.float32)
    poison = torch.full((3000, 64), float("nan"), device="cuda")
    del poison
    y = cuda.spgemm(adjacency, None, values, columns, 64)
    empty = adjacency.indptr.diff() == 0
    assert bool(empty.any())
    assert torch.equal(y[empty], torch.zeros_like(y[empty]))


class TestFixedPoint:
    """What must not be rounded to the largest value's scale is summed as floats."""

    @pytest.fixture(autouse=True)
    def high(self) -> Iterator[None]:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        yield
        torch.set_float32_matmul_precision(before)

    def run(self, values: Tensor, columns: Tensor, adjacency: Adjacency) -> tuple[Tensor, Tensor]:
        from maxk.ops.spgemm import cuda

        y = cuda.spgemm(adjacency, None, values, columns, 256)
        torch.set_float32_matmul_precision("highest")
        floats = cuda.spgemm(adjacency, None, values, columns, 256)
        torch.set_float32_matmul_precision("high")
        return y, floats

    @pytest.mark.parametrize(
        "outlier", [1e6, -1e12, 3e38, float("inf"), -float("inf"), float("nan")]
    )
    def test_outlier(self, outlier: float) -> None:
        adjacency = make(400, 300, 8000)
        values, columns = features(400, 256, 32, torch.float32)
        values[17, 3] = outlier
        y, floats = self.run(values, columns, adjacency)
        finite = torch.isfinite(floats)
        assert torch.equal(finite, torch.isfinite(y))
        assert torch.equal(torch.isnan(floats), torch.isnan(y))
        rows = ~(
            adjacency.csr.rows().long()[adjacency.indices == 17].unsqueeze(1)
            == torch.arange(300, device="cuda")
        ).any(0)
        torch.testing.assert_close(y[rows], floats[rows], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(y[finite], floats[finite], rtol=1e-4, atol=1e-5)

    def test_words_are_really_used(self) -> None:
        adjacency = make(400, 300, 8000)
        values, columns = features(400, 256, 32, torch.float32)
        y, floats = self.run(values, columns, adjacency)
        assert not torch.equal(y, floats)
        torch.testing.assert_close(y, floats, rtol=1e-4, atol=2e-5)

    @pytest.mark.parametrize("scale", [0.0, 1e-38, 1e-20, 1e20])
    def test_scale_of_everything(self, scale: float) -> None:
        adjacency = make(400, 300, 8000)
        values, columns = features(400, 256, 32, torch.float32)
        y, floats = self.run(values * scale, columns, adjacency)
        torch.testing.assert_close(y, floats, rtol=1e-4, atol=2e-5 * scale)

    def test_largest_sum_does_not_overflow(self) -> None:
        adjacency = make(1, 1, 0, hub=40000)
        for sign in (1.0, -1.0):
            values = torch.full((1, 4), sign, device="cuda")
            columns = torch.tensor([[0, 100, 200, 255]], dtype=torch.uint8, device="cuda")
            y, _ = self.run(values, columns, adjacency)
            torch.testing.assert_close(
                y[0, columns[0].long()], 40000 * values[0], rtol=1e-6, atol=0.0
            )


def test_a_graph_keeps_a_bounded_number_of_matrices() -> None:
    from maxk.ops.spmm import cuda
    from maxk.ops.spmm.matrices import MOST

    plain = make(50, 50, 300)
    x = torch.randn(50, 8, device="cuda")
    for step in range(50):
        scale = torch.full((50,), 1.0 + step, device="cuda")
        adjacency = Adjacency(plain.csr, scale)
        close(cuda.spmm(adjacency, None, x), truth(adjacency, None) @ x.double(), x.dtype)
    assert len(cuda._cache[plain.indices]) <= MOST
