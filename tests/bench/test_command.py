from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from maxk.bench.kernels import cases
from maxk.cli.bench import app
from maxk.cli.words import integers
from maxk.core.errors import ConfigError
from maxk.data.synthetic import SyntheticConfig
from maxk.measure.record import Row
from maxk.measure.rows import read

run = CliRunner().invoke


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    case = cases.Case("little", SyntheticConfig(nodes=60, degree=6.0), widths=(12,), ks=(3, 12))
    monkeypatch.setitem(cases.SUITES, "quick", (case,))


def rows(folder: Path) -> list[Any]:
    return [row for path in folder.rglob("*.jsonl") for row in read(path, Row)]


def test_kernels_prints_and_records(tmp_path: Path) -> None:
    words = ["kernels", "--device", "cpu", "--k", "3,5", "--rounds", "1", "--out", str(tmp_path)]
    result = run(app, [*words, "--against", "torch.sparse", "--against", "torch.topk"])
    assert result.exception is None, result.output
    found = rows(tmp_path)
    assert {row.k for row in found} == {3, 5}
    assert {row.precision for row in found} == {"highest"}
    assert "slower than a contender in" in result.output
    assert f"{len(found)} rows appended under {tmp_path}" in result.output


def test_past_the_limit_no_graph_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = SyntheticConfig(nodes=60, degree=6.0)
    two = tuple(cases.Case(name, config, widths=(12,)) for name in ("first", "second"))
    monkeypatch.setitem(cases.SUITES, "quick", two)
    words = ["epoch", "--device", "cpu", "--k", "3,6", "--rounds", "1", "--out", str(tmp_path)]
    result = run(app, [*words, "--against", "relu-eager", "--limit", "1e-9"])
    assert result.exception is None, result.output
    assert "not begun within 1e-09 s: first" in result.output
    assert "not begun within 1e-09 s: second" in result.output


def test_epoch_takes_several_models_as_words(tmp_path: Path) -> None:
    words = ["epoch", "--device", "cpu", "--k", "3", "--rounds", "1", "--out", str(tmp_path)]
    words += ["--against", "relu-eager", "--layers", "1", "--models", "sage", "gin"]
    result = run(app, words)
    assert result.exception is None, result.output
    assert {row.model for row in rows(tmp_path)} == {"sage", "gin"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["kernels", "--suite", "huge"], "suite must be one of"),
        (["kernels", "--k", "0"], "--k must be positive integers, as 8,16,32, got '0'"),
        (["kernels", "--k", "two"], "--k must be positive integers"),
        (["kernels", "--k", "13"], "--k must hold a k up to D = 12"),
        (["kernels", "--op", "sideways"], "--op must be one of forward, backward, maxk"),
        (["kernels", "--against", "nobody"], "--against must be one of torch.sparse, best-dense"),
        (["kernels", "--dtype", "int8"], "--dtype must be one of float32"),
        (["kernels", "--precision", "low"], "--precision must be one of highest, high, medium"),
        (["epoch", "--models", "gat"], "--models must be one of sage, gcn, gin, got 'gat'"),
        (["epoch", "--against", "jax"], "--against must be one of relu-compiled"),
    ],
)
def test_wrong_words_are_refused_before_anything_runs(
    words: list[str], message: str, tmp_path: Path
) -> None:
    result = run(app, [*words, "--device", "cpu", "--out", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
    assert not list(tmp_path.iterdir())


def test_integers() -> None:
    assert integers(None) == ()
    assert integers(["8,16", "32"]) == (8, 16, 32)
