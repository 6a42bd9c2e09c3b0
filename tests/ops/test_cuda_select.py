"""MaxK on a GPU: the contract bit by bit, against the stable sort that defines it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from maxk.cbsr import column_dtype, largest_columns

pytestmark = pytest.mark.gpu

SHAPES = [
    (1, 1, 1), (7, 2, 1), (5, 31, 3), (9, 32, 32), (13, 33, 1), (40, 33, 20), (65, 64, 8),
    (100, 255, 32), (300, 256, 2), (300, 256, 32), (77, 256, 100), (50, 256, 256), (64, 257, 32),
    (40, 384, 32), (33, 1000, 32), (9, 1000, 999), (17, 2048, 96), (6, 2049, 64), (8, 4096, 32),
    (3, 4096, 4096), (2, 40000, 33), (0, 16, 4),
]  # fmt: skip
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def bits(t: Tensor) -> Tensor:
    """The tensor's bytes as integers, so that NaN equals NaN and -0.0 differs from 0.0."""
    return t.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()])


def check(x: Tensor, k: int) -> None:
    from maxk.ops.maxk import cuda

    values, columns = cuda.select(x, k)
    assert values.shape == columns.shape == (x.shape[0], k)
    assert columns.dtype == column_dtype(x.shape[1])
    kept, order = columns.long().sort(dim=1)
    expected = largest_columns(x.cpu(), k).cuda()  # CUDA's sort ranks a NaN with the sign last
    assert torch.equal(kept, expected)
    assert torch.equal(bits(values).gather(1, order), bits(x).gather(1, expected))
    dense = cuda.scatter(values, columns, x.shape[1])
    reference = torch.zeros_like(x).scatter_(1, expected, x.gather(1, expected))
    assert torch.equal(bits(dense), bits(reference))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_keeps_the_k_largest(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows, width, k = shape
    generator = torch.Generator("cuda").manual_seed(rows * width + k)
    x = torch.randn(rows, width, device="cuda", generator=generator, dtype=torch.float32)
    check(x.to(dtype), k)
    check((x * 2).round().to(dtype), k)  # ties everywhere


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
@pytest.mark.parametrize("width", [5, 64, 256, 300, 4096])
def test_special_values(width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator("cuda").manual_seed(width)
    nan, inf = float("nan"), float("inf")
    pool = torch.tensor([nan, -nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40], device="cuda")
    pool = pool.to(dtype)
    pick = torch.randint(len(pool), (400, width), device="cuda", generator=generator)
    for k in sorted({1, 3, width // 2, width}):
        check(pool[pick], k)
    for value in pool:
        check(value.expand(3, width).contiguous(), 2)


def test_negative_nan_is_a_nan() -> None:
    x = torch.tensor([[1.0, float("inf"), 2.0, 0.0]], device="cuda")
    bits(x)[0, 3] = -1  # every bit set: a NaN with the sign
    check(x, 2)


def test_values_of_one_row_far_apart() -> None:
    scale = torch.logspace(-38, 38, 256, device="cuda")
    generator = torch.Generator("cuda").manual_seed(3)
    x = torch.randn(64, 256, device="cuda", generator=generator) * scale
    for k in (1, 32, 100, 255):
        check(x, k)


def test_rows_that_do_not_start_on_16_bytes() -> None:
    flat = torch.randn(1 + 20 * 256, device="cuda")
    check(flat[1:].view(20, 256), 32)


def test_random_shapes() -> None:
    generator = torch.Generator().manual_seed(11)
    for _ in range(40):
        width = int(torch.randint(1, 600, (), generator=generator))
        k = int(torch.randint(1, width + 1, (), generator=generator))
        rows = int(torch.randint(1, 200, (), generator=generator))
        check(torch.randn(rows, width, device="cuda"), k)
