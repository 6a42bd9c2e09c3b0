from __future__ import annotations

import pytest

from maxk.bench.kernels.cases import PAPER_KS, SUITES, cases
from maxk.core.errors import ConfigError


def test_the_paper_suite_is_the_five_shapes_and_nine_k() -> None:
    suite = {case.graph: case for case in cases("paper")}
    assert list(suite) == [
        "reddit-like", "proteins-like", "products-like", "yelp-like", "flickr-like",
    ]  # fmt: skip
    assert all(
        case.ks == PAPER_KS == (2, 4, 8, 16, 32, 64, 96, 128, 192) for case in suite.values()
    )
    assert suite["yelp-like"].widths == (256, 384)
    assert suite["reddit-like"].config.nodes == 232_965
    assert suite["reddit-like"].config.edges == 101_283_392


def test_paper24_has_the_sizes_of_the_table() -> None:
    suite = cases("paper24")
    assert len(suite) == 24
    ddi = next(case for case in suite if case.graph == "ddi-size")
    assert (ddi.config.nodes, ddi.config.edges) == (4_267, 2_135_822)


def test_the_cpu_suite_goes_to_k_equal_d() -> None:
    assert all(max(case.ks) == max(case.widths) for case in SUITES["cpu"])


def test_scale_shrinks_a_case_and_says_so() -> None:
    (case,) = cases("paper", graphs=("reddit-like",), scale=0.001)
    assert case.graph == "reddit-like@0.001"
    assert case.config.nodes == 233
    graph = case.build(seed=3)
    assert graph.num_src == 233
    assert graph.edge_index().equal(case.build(seed=3).edge_index())


@pytest.mark.parametrize(
    ("suite", "graphs", "scale", "message"),
    [
        ("huge", (), 1.0, "suite must be one of quick, cpu, paper, paper24, got 'huge'"),
        ("paper", ("cora",), 1.0, "graph must be one of reddit-like, .* got 'cora'"),
        ("paper", (), 0.0, "scale must be positive, got 0"),
    ],
)
def test_wrong_words(suite: str, graphs: tuple[str, ...], scale: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cases(suite, graphs=graphs, scale=scale)
