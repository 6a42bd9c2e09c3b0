"""Byte order marks, other line ends and file names that are no UTF-8."""

from __future__ import annotations

import codecs
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from maxk.core.errors import ConfigError, DataError
from maxk.data.load import load
from maxk.graph.files import load_graph, read_edge_list, read_table
from maxk.measure import record
from maxk.train.config import TrainConfig

MARK = codecs.BOM_UTF8


def test_a_mark_in_front_of_a_recipe_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_bytes(MARK + b"hidden = 64\r\nk = 8\r\n")
    config = TrainConfig.from_toml(path)
    assert (config.hidden, config.k) == (64, 8)
    path.write_bytes("hidden = 64".encode("utf-16"))
    with pytest.raises(ConfigError, match=r"r\.toml is not a TOML file: it is not UTF-8 text"):
        TrainConfig.from_toml(path)


@pytest.mark.parametrize("name", ["e.txt", "e.csv", "e.tsv", "e.csv.gz"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_mark_in_front_of_edges_is_skipped(tmp_path: Path, name: str, end: bytes) -> None:
    data = MARK + end.join([b"source,target", b"0,1", b"2,0", b""])
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert read_edge_list(path).edge_index.tolist() == [[0, 2], [1, 0]]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("name", ["m.mtx", "m.mtx.gz"])
def test_a_mark_in_front_of_a_matrix_is_skipped(tmp_path: Path, name: str, end: bytes) -> None:
    lines = [b"%%MatrixMarket matrix coordinate pattern general", b"% c", b"2 3 1", b"1 3 ", b""]
    data = MARK + end.join(lines)
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    graph = load_graph(path)
    assert (graph.num_dst, graph.num_src) == (2, 3)
    assert graph.edge_index().tolist() == [[2], [0]]
    path.write_bytes(b"" if name == "m.mtx" else gzip.compress(b""))
    with pytest.raises(DataError, match=re.escape(str(path))):
        load_graph(path)


def test_a_mark_in_front_of_labels_rows_and_facts_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "y.csv").write_bytes(MARK + b"label;\r\n0;\r\n1;\r\n")
    assert read_table(tmp_path / "y.csv").tolist() == [[0], [1]]
    meta = "\ufeff" + json.dumps({"name": "small"})
    np.savez(tmp_path / "g.npz", edge_index=[[0], [1]], y=[0, 1, 0], meta=np.array(meta))
    assert load(tmp_path / "g.npz").name == "small"
    (tmp_path / "rows.jsonl").write_bytes(MARK)
    assert list(record.read(tmp_path / "rows.jsonl")) == []


@pytest.mark.parametrize("name", ["e.txt", "e.csv.gz"])
def test_text_of_two_bytes_a_character_is_named(tmp_path: Path, name: str) -> None:
    data = "0 1\n2 0\n".encode("utf-16")
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(DataError, match=r"is UTF-16 text; save it as UTF-8"):
        load_graph(path)


def maxk(folder: Path, *words: str | bytes) -> subprocess.CompletedProcess[bytes]:
    program = "import sys; from maxk.cli.main import main; sys.exit(main())"
    # A UTF-8 locale; only what is written to files is tested here, so printing may escape.
    env = {**os.environ, "PYTHONIOENCODING": "utf-8:backslashreplace", "PYTHONUTF8": "1"}
    return subprocess.run(
        [sys.executable, "-c", program, *words], cwd=folder, env=env, capture_output=True
    )


@pytest.mark.skipif(sys.platform != "linux", reason="file names are text there")
def test_a_run_on_a_file_whose_name_is_no_text_ends_and_is_found_again(tmp_path: Path) -> None:
    name = b"caf\xe9.npz"
    with Path(tmp_path, os.fsdecode(name)).open("wb") as file:
        np.savez(file, edge_index=np.arange(60).reshape(2, 30), x=np.eye(60), y=np.arange(60) % 3)
    small = ["--hidden", "8", "--k", "2", "--device", "cpu"]
    folder = b"r\xe9sult"
    made = maxk(tmp_path, "train", "--dataset", name, "--epochs", "2", "--out", folder, *small)
    assert made.returncode == 0, made.stderr
    run = Path(tmp_path, os.fsdecode(folder))
    config = TrainConfig.from_toml(run / "config.toml")
    assert Path(config.dataset) == tmp_path / os.fsdecode(name)
    assert json.loads((run / "summary.json").read_text())["epochs"] == 2
    for words in (["evaluate", folder], ["data", "describe", name]):
        done = maxk(tmp_path, *words)
        assert done.returncode == 0, done.stderr
    gone = maxk(tmp_path, "train", "--dataset", name + b".npz")
    assert gone.returncode == 2
    assert gone.stderr.startswith(b"maxk: ")
    assert b"Traceback" not in gone.stderr


def test_trailing_separators_are_no_column(tmp_path: Path) -> None:
    """Trailing separators of every kind of text give the same graph."""
    graphs = []
    for text in ("0,1,\n2,0,\n", "0;1;\r\n2;0;\r\n", "0\t1\t\n2\t0\t\n", "0 1 \n2 0 \n"):
        path = tmp_path / "e.csv"
        path.write_text(text)
        graphs.append(load_graph(path).edge_index())
    assert all(torch.equal(graph, graphs[0]) for graph in graphs)
    assert graphs[0].tolist() == [[2, 0], [0, 1]]
