from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

from maxk.bench.fit import run as approximation
from maxk.bench.fit import tables as report
from maxk.bench.fit.run import FUNCTIONS, Fit, Networks, Rule, fit, grid
from maxk.cli.main import main
from maxk.core.errors import ConfigError
from maxk.nn.nonlinearities import Activation


def network(weight: torch.Tensor, bias: torch.Tensor, out: torch.Tensor, k: int) -> Networks:
    """A network of given weights: [H, d], [H], [H]."""
    width, inputs = weight.shape
    made = Networks(inputs, width, 1, Activation("maxk", width, k)).double()
    with torch.no_grad():
        made.weight.copy_(weight.t()[None])
        made.bias.copy_(bias[None, None])
        made.out.copy_(out[None, :, None])
    return made


@pytest.mark.parametrize(("always", "never"), [(0, 0), (0, 14), (5, 3)])
def test_pairs_of_units_are_a_relu_network(always: int, never: int) -> None:
    """The construction of theorem 1, at three shares k / H."""
    torch.manual_seed(0)
    m, d = 7, 2
    w, c, u = torch.randn(m, d).double(), torch.randn(m).double(), torch.randn(m).double()
    x = torch.rand(500, d, dtype=torch.float64) * 2 - 1
    x[0] = -c[0] * w[0] / w[0].square().sum()  # where a pair is zero
    big = 100.0
    constant = torch.zeros(always + never, d, dtype=torch.float64)
    level = torch.tensor([big] * always + [-big] * never, dtype=torch.float64)
    made = network(
        torch.cat([w, -w, constant]),
        torch.cat([c, -c, level]),
        torch.cat([u, torch.zeros(m + always + never).double()]),
        k=m + always,
    )
    relu = (x @ w.t() + c).relu() @ u
    assert torch.allclose(made(x)[0], relu, atol=1e-12)


@pytest.mark.parametrize("k", [1, 3])
def test_a_fixed_k_comes_near_a_continuous_function(k: int) -> None:
    """The construction of theorem 2: the error falls with the number of centres alone."""

    def worst(points: int) -> float:
        centres = grid(2, points).double()
        level = 1e6
        weight = torch.cat([2 * centres, torch.zeros(k - 1, 2).double()])
        bias = torch.cat([
            level - centres.square().sum(1), torch.full((k - 1,), 2 * (level + 2)).double(),
        ])  # fmt: skip
        out = torch.cat([target(centres) / level, torch.zeros(k - 1).double()])
        x = torch.rand(2000, 2, dtype=torch.float64) * 2 - 1
        return float((network(weight, bias, out, k)(x)[0] - target(x)).abs().max().detach())

    torch.manual_seed(0)
    _, target = FUNCTIONS["surface"]
    few, more, many = worst(5), worst(17), worst(65)
    assert many < 0.3 * more < 0.3 * 0.4 * few
    # Half the diagonal of a cell times the largest slope.
    assert many < 2**0.5 / 64 * torch.pi * 1.05


def test_relu_and_maxk_learn_a_parabola_better_with_more_units() -> None:
    for rule in (None, Rule.parse("1/2")):
        small, large = (fit("square", width, rule, seeds=2, steps=300) for width in (2, 32))
        assert all(a.rmse > 2 * b.rmse for a, b in zip(small, large, strict=True))
        assert all(f.worst >= f.rmse > 0 for f in small + large)


def test_errors_are_taken_between_the_points_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def noted(dimensions: int, points: int) -> torch.Tensor:
        asked.append((dimensions, points))
        return grid(dimensions, points)

    monkeypatch.setattr(approximation, "grid", noted)
    (one,) = fit("surface", 4, None, seeds=1, steps=1)
    assert asked == [(2, 32), (2, 129)]
    assert one.steps == 1
    coarse, fine = grid(1, 32)[:, 0], grid(1, 129)[:, 0]
    assert not set(coarse.tolist()[1:-1]) & set(fine.tolist())


def test_each_seed_is_a_network_of_its_own() -> None:
    both = fit("abs", 4, Rule.parse("2"), seeds=2, steps=30)
    (alone,) = fit("abs", 4, Rule.parse("2"), seeds=1, steps=30)
    assert both[0].rmse == pytest.approx(alone.rmse, rel=1e-4)
    assert both[0].rmse != both[1].rmse


@pytest.mark.parametrize("text", ["0", "3/2", "x", "-1", "1/0", "0.0"])
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(ConfigError, match="--k must be a share of the width, as 1/4, or a number"):
        Rule.parse(text)


def test_rules() -> None:
    assert [Rule.parse("1/4").k(width) for width in (1, 4, 5, 64)] == [1, 1, 2, 16]
    assert [Rule.parse("2").k(width) for width in (1, 4)] == [1, 2]
    assert Rule.parse("0.5").k(7) == 4
    with pytest.raises(ConfigError, match="--function must be one of square, sin, abs, surface"):
        fit("cube", 4, None)


def test_the_table_shows_medians() -> None:
    fits = [Fit("abs", "maxk", "k = 2", 4, 2, seed, rmse, 3 * rmse, 9)
            for seed, rmse in enumerate((0.1, 0.3, 0.2))]  # fmt: skip
    assert report.error_table(fits).splitlines()[-1] == "| abs | MaxK, k = 2 | 2.0e-01 (6.0e-01) |"


def test_the_picture_has_a_line_a_network_and_a_panel_a_function() -> None:
    fits = [
        Fit(function, "maxk" if k else "relu", "k = 2" if k else "", width, k, seed, rmse, 1.0, 9)
        for function in ("abs", "sin", "square")
        for width, rmse in ((4, 0.2), (8, 0.1))
        for k in (None, 2)
        for seed in range(2)
    ]
    panels = report.error_figure(fits).axes
    assert [panel.get_title() for panel in panels] == ["|x|", "sin 2πx", "x²", ""]
    for panel in panels[:3]:
        assert [list(line.get_ydata()) for line in panel.lines] == [[0.2, 0.1]] * 2
    assert not panels[3].axison


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- results -->\n<!-- /results -->\nb\n")
    words = f"fit --function abs square --widths 2 4 --k 1/2 --steps 3 --seeds 2 --out {tmp_path}"
    assert main([*words.split(), "--into", str(page), "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "| square | MaxK, k = 1/2 of the width |" in shown
    assert "| abs | ReLU |" in page.read_text()
    rows = [json.loads(line) for line in (tmp_path / "fit.jsonl").read_text().splitlines()]
    assert [(r["function"], r["width"], r["k"], r["seed"]) for r in rows[:4]] == [
        ("abs", 2, None, 0), ("abs", 2, None, 1), ("abs", 2, 1, 0), ("abs", 2, 1, 1),
    ]  # fmt: skip
    with (tmp_path / "fit.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(rows) == 16
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")
    for wrong in (["--function", "cube"], ["--k", "5/4"], ["--widths", "x"]):
        assert main(["fit", *wrong]) == 2
        assert wrong[0] in capsys.readouterr().err
