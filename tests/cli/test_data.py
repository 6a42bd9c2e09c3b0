from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from maxk.cli.main import main
from maxk.core.settings import settings
from maxk.data.catalog import catalog


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("MAXK_DATA_DIR", str(tmp_path))
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


def test_the_list_says_what_is_here(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(folder / "mine.npz", x=np.ones(1))
    photo = catalog()["amazon-photo"]
    (folder / photo.folder).mkdir(parents=True)
    (folder / photo.folder / photo.files[0]).write_bytes(b"")
    assert main(["data", "list"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == [
        "name", "nodes", "edges", "features", "classes", "scored", "by", "split", "licence", "from",
        "here",
    ]  # fmt: skip
    rows = {line.split()[0]: line.split() for line in lines}
    assert {"digits", "synthetic", "mine", *catalog()} < set(rows)
    assert rows["mine"][-2:] == ["file", "yes"]
    assert rows["amazon-photo"][-2:] == ["PyG", "yes"]
    assert rows["reddit"][1:6] == ["232,965", "114,615,892", "602", "41", "accuracy"]
    assert rows["reddit"][-3:] == ["unknown", "PyG", "no"]
    assert str(folder) in lines[-1]


def test_the_list_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(folder / "mine.npz", x=np.ones(1))
    assert main(["data", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["files"] == [str(folder / "mine.npz")]
    rows = {row["name"]: row for row in listed["catalog"]}
    assert rows["wikics"]["edges"] is None
    assert rows["cora"]["arguments"] == {"name": "Cora"}
    assert not rows["cora"]["here"]


def test_one_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "show", "OGBN_Proteins"]) == 0
    shown = capsys.readouterr().out
    for text in (
        "112 (multi-label), scored by ROC AUC",
        "210 MB",
        "SHA-256    1cd3113dc2a6f0c87a549332b77d78be45cf99804c254c18d9c72029164a0859",
        'pip install "maxk[data]"',
        f"{folder}/ogbn_proteins/raw/",
        "edge-feat.csv.gz (missing)",
        "http://snap.stanford.edu/ogb/data/nodeproppred/proteins.zip",
    ):
        assert text in shown
    assert main(["data", "show", "cora"]) == 0
    shown = capsys.readouterr().out
    assert "Planetoid(root, name='Cora')" in shown
    assert "pickles, which can run code" in shown
    assert main(["data", "show", "cora", "--json"]) == 0
    assert "ind.cora.graph" in json.loads(capsys.readouterr().out)["missing"]
    assert main(["data", "show", "redit"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("maxk: the catalog holds no 'redit'; did you mean reddit?")
    assert told.count("\n") == 1


def test_a_run_on_a_misspelt_name_is_told_the_right_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--dataset", "ogbn-arxive", "--device", "cpu"]) == 2
    assert "did you mean ogbn-arxiv?" in capsys.readouterr().err


def test_looking_at_the_catalog_loads_no_torch() -> None:
    code = (
        "import sys; from maxk.cli.main import main; main(['data', 'list', '--json']);"
        "print({'torch', 'numpy', 'torch_geometric', 'ogb'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "set()"
