from __future__ import annotations

import pytest

from maxk.measure import traffic
from maxk.measure.traffic import Size, Traffic

# 2 sources, 3 targets, 5 edges, D = 10, k = 4.
SMALL = Size(num_src=2, num_dst=3, num_edges=5, width=10, k=4)


def test_formulas_on_a_graph_small_enough_to_count() -> None:
    graph = 5 * 4 + 4 * 8
    assert traffic.spmm(SMALL) == Traffic(5 * 10 * 4 + graph, 3 * 10 * 4)
    assert traffic.spgemm(SMALL) == Traffic(5 * 4 * (4 + 1) + graph, 3 * 10 * 4)
    assert traffic.sspmm(SMALL) == Traffic(3 * 10 * 4 + 5 * 4 + graph, 2 * 4 * 4, 5 * 4 * 4)
    assert traffic.maxk(SMALL) == Traffic(2 * 10 * 4, 2 * 4 * 5)
    assert traffic.topk(SMALL) == Traffic(2 * 10 * 4, 2 * 4 * 12)


def test_the_papers_reddit_row() -> None:
    reddit = Size(232_965, 232_965, 114_615_891, 256, 32)
    features = 114_615_891 * 256 * 4
    assert traffic.spmm(reddit).reads == pytest.approx(features, rel=0.01)
    # 4 D a row becomes 5 k: 1,024 bytes become 160.
    assert traffic.spgemm(reddit).reads == pytest.approx(features * 160 / 1024, rel=0.03)


def test_weights_are_read_once_an_edge() -> None:
    weighted = Size(2, 3, 5, 10, 4, weighted=True)
    assert traffic.spmm(weighted).reads - traffic.spmm(SMALL).reads == 5 * 4


@pytest.mark.parametrize(
    ("width", "expected"), [(1, 1), (256, 1), (257, 2), (32768, 2), (32769, 4)]
)
def test_column_bytes(width: int, expected: int) -> None:
    assert traffic.column_bytes(width) == expected


def test_rate_counts_every_byte_once() -> None:
    assert Traffic(10**9, 5 * 10**8, 5 * 10**8).gbps(2.0) == 1000.0
