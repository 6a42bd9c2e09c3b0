"""The thresholds that the documentation names are those of the code."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest
import torch

import maxk
from maxk.bench.epochs import profile
from maxk.bench.epochs import run as epochs
from maxk.bench.kernels import gate
from maxk.bench.sweep import verdict

DOCS = Path(__file__).resolve().parents[2] / "docs"


def page(name: str) -> str:
    return " ".join((DOCS / name).read_text(encoding="utf-8").split())


def short(value: float) -> str:
    """As the text writes it: ``1e-05`` is ``1e-5``."""
    return re.sub(r"e-0(\d)", r"e-\1", f"{value:g}" if value >= 0.1 else f"{value:.0e}")


def test_the_tolerances_of_the_gate() -> None:
    text = page("measuring.md")
    names = {"float64": torch.float64, "float32": torch.float32}
    names |= {"float16": torch.float16, "bfloat16": torch.bfloat16}
    for name, dtype in names.items():
        assert f"{short(gate.TOLERANCE[dtype])} for {name}" in text
    assert f"{gate.ROUNDINGS:g} u ‖s‖" in text
    assert f"1/{round(1 / gate.FIXED_SHARE)} of ‖s‖" in text
    assert f"2^{torch.tensor(gate.fixed_step(512)).log2():.0f} of the largest |v|" in text
    assert f"loss may differ by {short(epochs.LOSS_TOLERANCE)} of itself" in text
    assert f"may differ by {100 * epochs.GRADIENT_TOLERANCE:g} % of its own size" in text


def test_the_thresholds_of_the_advice() -> None:
    text = page("measuring.md")
    assert f"gains {100 * (profile.WORTH - 1):.0f} % or more beyond the spread" in text
    assert profile.GAIN_SHARE == 0.5 and "half of what the best k gains" in text
    assert verdict.FEWEST == 3 and "Fewer than three seeds are not tested" in page("choosing-k.md")
    table = page("accuracy.md")
    assert f"level {100 * verdict.LEVEL:.0f} %" in table
    assert f"rules out a loss of {100 * verdict.MARGIN:.0f} point" in table


@pytest.mark.parametrize(("op", "words"), [("spgemm", "forward above k/D = {}"),
                                           ("sspmm", "backward above {}")])  # fmt: skip
def test_the_share_from_which_a_cpu_takes_the_dense_product(op: str, words: str) -> None:
    graph = maxk.Graph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), 2)
    reason = str(maxk.explain(op, graph, maxk.maxk(torch.ones(2, 256), 255)))
    share = re.search(r"is above ([\d.]+)", reason)
    assert share is not None, reason
    limit = Fraction(share[1]).limit_denominator(10)
    assert words.format(limit) in page("kernels.md")
