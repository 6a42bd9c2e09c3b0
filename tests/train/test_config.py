from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from maxk.core.errors import ConfigError
from maxk.train.config import TrainConfig, field_help, flag, parse_flag, read_toml


def refused(**values: object) -> str:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**values)  # type: ignore[arg-type]
    return str(caught.value)


def test_every_field_has_help_of_its_own() -> None:
    texts = field_help()
    assert set(texts) == {f.name for f in fields(TrainConfig)}
    assert len(set(texts.values())) == len(texts)


def test_k_outside_the_hidden_width_names_both_flags() -> None:
    assert refused(k=300, hidden=64) == "--k must lie in [1, 64] (--hidden is 64), got 300"
    assert refused(k=0) == "--k must lie in [1, 256] (--hidden is 256), got 0"
    assert refused(k=-1).endswith("got -1")


def test_k_is_free_where_relu_needs_none() -> None:
    assert TrainConfig(nonlinearity="relu", hidden=8).hidden == 8


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"k": 2.5}, "--k must be a whole number, got 2.5"),
        ({"k": True}, "--k must be a whole number, got True"),
        ({"model": "gat"}, "--model must be one of sage, gcn, gin, got 'gat'"),
        ({"lr": "fast"}, "--lr must be a number, got 'fast'"),
        ({"lr": float("nan")}, "--lr must be above 0 and finite, got nan"),
        ({"weight_decay": -1}, "--weight-decay must be at least 0 and finite, got -1"),
        ({"dropout": 1.0}, "--dropout must lie in [0, 1), got 1"),
        ({"epochs": 0}, "--epochs must be at least 1, got 0"),
        ({"split": "x"}, "--split must be a whole number or 'seed', got 'x'"),
        ({"split": -1}, "--split must be at least 0, got -1"),
        ({"device": "tpu"}, "--device must be auto, cpu, cuda or cuda:N, got 'tpu'"),
        ({"undirected": 1}, "--undirected must be true or false, got 1"),
    ],
)
def test_wrong_values_are_refused_by_flag(values: dict[str, object], message: str) -> None:
    assert refused(**values) == message


def test_toml_holds_what_it_was_written_from(tmp_path: Path) -> None:
    config = TrainConfig(
        dataset='a "strange"\\näme\n.npz',
        lr=1e-5,
        split="seed",
        undirected=True,
        norm="none",
        out="somewhere",
        quiet=True,
    )
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    # Where a run went and how much it printed belong to the call, not to the run.
    assert TrainConfig.from_toml(path) == replace(config, out=None, quiet=False)


def test_arguments_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("k = 8\nhidden = 64\nweight-decay = 1\n")
    config = TrainConfig.from_toml(path, k=4)
    assert (config.k, config.hidden, config.weight_decay) == (4, 64, 1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hiden = 64", "unknown key 'hiden'; did you mean 'hidden'?"),
        ("weight_decay = 1", "unknown key 'weight_decay'; did you mean 'weight-decay'?"),
        ("qqqqqqq = 1", "unknown key 'qqqqqqq'; known are dataset, model"),
        ("k = ", "is not a TOML file: Invalid value (at "),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_toml(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_a_wrong_value_names_the_file_where_it_is_the_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("k = 64\nhidden = 32\nlr = 0.01\n")
    with pytest.raises(ConfigError, match=rf"^{path}: --k must lie in \[1, 32\] .*got 64$"):
        TrainConfig.from_toml(path)
    with pytest.raises(ConfigError, match=rf"^{path}: --k must lie"):
        TrainConfig.from_toml(path, lr=0.1)
    # A flag mends it, and a wrong flag is a flag.
    assert TrainConfig.from_toml(path, hidden=64).hidden == 64
    path.write_text("k = 16\nhidden = 32\n")
    with pytest.raises(ConfigError, match=r"^--k must lie in \[1, 8\] \(--hidden is 8\), got 16$"):
        TrainConfig.from_toml(path, hidden=8)


def test_a_missing_file_and_a_binary_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_toml(tmp_path / "b.toml")


def test_flags_are_read_as_their_fields_hold_them() -> None:
    assert flag("weight_decay") == "--weight-decay"
    assert parse_flag("split", "3") == 3
    assert parse_flag("split", "seed") == "seed"
    assert parse_flag("lr", "1e-3") == 1e-3
    assert parse_flag("k", "2.5") == "2.5"
    assert parse_flag("dataset", "12") == "12"


def test_importing_the_configuration_imports_no_torch() -> None:
    code = (
        "import sys, maxk.train.config; "
        "print([m for m in ('torch', 'numba', 'sklearn', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
