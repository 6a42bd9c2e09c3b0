"""Data sets of PyG by name: its own classes, on raw files written in each source's format."""

from __future__ import annotations

import shutil
import socket
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from data import raw_files
from data.conftest import edges, known, masks, refused
from data.raw_files import NODES, PAIRS
from maxk.core.errors import DataError
from maxk.data.catalog import Entry, catalog
from maxk.data.describe import describe
from maxk.data.load import load
from maxk.train.config import TrainConfig
from maxk.train.folder import open_run
from maxk.train.run import run

BOTH = {*PAIRS, *((t, s) for s, t in PAIRS)}


def test_planetoid(folder: Path) -> None:
    raw_files.planetoid(folder / "Planetoid/Cora/raw", "cora")
    data = load("Cora")
    assert repr(data) == ("Dataset(cora: 515 nodes, 1030 edges, 60 features, 3 classes, accuracy)")
    ring = {(n, (n + 1) % 515) for n in range(515)}
    assert edges(data) == {*ring, *((t, s) for s, t in ring)}
    assert masks(data) == [[0, 1], list(range(2, 502)), [512, 513, 514]]
    # The test rows stand in the order of test.index, 514 first.
    assert data.y[[514, 512, 513]].tolist() == [0, 1, 2]
    assert data.x.layout == torch.sparse_csr
    assert data.x.to_dense()[[514, 512, 513]].nonzero().tolist() == [[0, 0], [1, 1], [2, 2]]
    # The second load reads what PyG kept.
    again = load("cora")
    assert torch.equal(again.graph.edge_index(), data.graph.edge_index())
    assert any("published cora has 2,708 nodes, this one 515" in note for note in data.notes)


def test_amazon_and_coauthor(folder: Path) -> None:
    name = folder / "Amazon/Photo/raw/amazon_electronics_photo.npz"
    raw_files.benchmark_npz(name, raw_files.sp.csr_matrix(np.abs(raw_files.dense())))
    data = load("amazon_photo", seed=3)
    assert edges(data) == BOTH
    assert data.y.tolist() == [n % 3 for n in range(NODES)]
    assert data.x.tolist() == np.ones((NODES, 4)).tolist()  # PyG reads words as there or not
    assert any("one with seed 3" in note for note in data.notes)
    raw_files.benchmark_npz(folder / "Coauthor/Physics/raw/ms_academic_phy.npz", raw_files.bag())
    data = load("coauthor-physics")
    assert data.x.layout == torch.sparse_csr
    assert np.array_equal(data.x.to_dense().numpy(), raw_files.bag().toarray())


def test_flickr_and_yelp(folder: Path) -> None:
    raw_files.saint(folder / "Flickr/raw", [n % 3 for n in range(NODES)])
    data = load("flickr")
    assert edges(data) == BOTH
    assert masks(data) == [[0, 1, 2, 3, 4, 5], [6, 7], [8, 9]]
    assert (data.metric, data.num_classes) == ("accuracy", 3)
    assert np.array_equal(data.x.numpy(), raw_files.dense())
    several = [[n % 2, 1, n % 3 == 0] for n in range(NODES)]
    raw_files.saint(folder / "Yelp/raw", [[int(v) for v in row] for row in several])
    data = load("yelp")
    assert (data.metric, data.multi_label) == ("micro_f1", True)
    assert data.y.tolist() == np.array(several, dtype=float).tolist()


def test_reddit(folder: Path) -> None:
    raw_files.reddit(folder / "Reddit/raw")
    data = load("reddit")
    assert edges(data) == BOTH
    assert masks(data) == [[0, 1, 2, 3, 4, 5], [6, 7], [8, 9]]
    assert np.array_equal(data.x.numpy(), raw_files.dense())


def test_heterophilous_has_ten_splits(folder: Path) -> None:
    raw_files.heterophilous(folder / "HeterophilousGraphDataset/tolokers/raw", "tolokers")
    refused("tolokers", "holds 10 splits and none is chosen")
    data = load("tolokers", split=4)
    assert edges(data) == BOTH
    assert data.metric == "roc_auc"
    order = np.random.default_rng(4).permutation(NODES)
    assert masks(data) == [sorted(part.tolist()) for part in np.split(order, [5, 7])]


def test_wikics_shares_one_test_set(folder: Path) -> None:
    raw_files.wikics(folder / "WikiCS/raw")
    data = load("wikics", split=1)
    assert edges(data) == BOTH
    assert masks(data) == [[1, 5, 9], [3, 7], [8, 9]]


def test_actor_keeps_its_direction(folder: Path) -> None:
    raw_files.actor(folder / "Actor/raw")
    data = load("actor", split=1)
    assert edges(data) == set(PAIRS)
    assert masks(data)[0] == [2, 5, 8]
    assert any("--undirected" in note for note in data.notes)


def test_ppi_is_one_graph_of_many(folder: Path) -> None:
    raw_files.ppi(folder / "PPI/raw")
    data = load("ppi")
    assert data.num_nodes == 4 * NODES
    assert masks(data) == [
        list(range(2 * NODES)),
        list(range(2 * NODES, 3 * NODES)),
        list(range(3 * NODES, 4 * NODES)),
    ]
    source, target = data.graph.edge_index()
    assert torch.equal(source // NODES, target // NODES)
    first = {(s, t) for s, t in edges(data) if t < NODES}
    last = {(s - 3 * NODES, t - 3 * NODES) for s, t in edges(data) if t >= 3 * NODES}
    assert first == last >= set(PAIRS)
    assert np.allclose(data.x[3 * NODES :].numpy(), raw_files.dense() + 2)


def test_no_network(folder: Path) -> None:
    refused(
        "reddit", "reddit cannot be fetched (", "no network here",
        "get https://data.dgl.ai/dataset/reddit.zip and put it, still packed, "
        f"into {folder}/Reddit/raw/",
    )  # fmt: skip
    raw_files.reddit(folder / "by_hand")
    (folder / "by_hand").replace(folder / "Reddit/raw")
    assert load("reddit").num_nodes == NODES
    refused("cora", "ind.cora.test.index", "https://github.com/kimiyoung/planetoid")


@pytest.mark.parametrize(("name", "make", "file"), [
    ("reddit", lambda f: raw_files.reddit(f / "Reddit/raw"), "reddit_graph.npz"),
    ("flickr", lambda f: raw_files.saint(f / "Flickr/raw", [0, 1] * 5), "adj_full.npz"),
    ("flickr", lambda f: raw_files.saint(f / "Flickr/raw", [0, 1] * 5), "role.json"),
    ("flickr", lambda f: raw_files.saint(f / "Flickr/raw", [0, 1] * 5), "feats.npy"),
    ("cora", lambda f: raw_files.planetoid(f / "Planetoid/Cora/raw", "cora"), "ind.cora.graph"),
])  # fmt: skip
def test_a_truncated_file_is_named(
    folder: Path, name: str, make: Callable[[Path], None], file: str
) -> None:
    make(folder)
    path = folder / catalog()[name].folder / file
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    refused(name, f"{path} is damaged", "delete it and try again", catalog()[name].page)
    assert path.is_file(), "what the user put there stays"


def packed(files: Path, archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w") as made:
        for file in files.iterdir():
            made.write(file, file.name)
    return archive


def serves(monkeypatch: pytest.MonkeyPatch, archive: Path) -> None:
    """A server that sends this file, whatever is asked."""

    def download(url: str, where: str) -> str:
        path = Path(where) / url.rpartition("/")[2]
        path.parent.mkdir(parents=True, exist_ok=True)
        return str(path if path.exists() else shutil.copyfile(archive, path))

    monkeypatch.setattr("torch_geometric.data.download_url", download)


def test_an_archive_is_checked_and_unpacked(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path_factory.mktemp("server")
    for name, make in (("reddit", raw_files.reddit), ("ppi", raw_files.ppi)):
        make(outside / name)
        archive = packed(outside / name, outside / f"{name}.zip")
        serves(monkeypatch, archive)
        where = folder / str(catalog()[name].archive)
        refused(
            name, f"{where} is not the known {name}.zip: its SHA-256 is ",
            f", expected {catalog()[name].sha256}; get it from https://data.dgl.ai/dataset/{name}",
            f"or unpack it into {folder / catalog()[name].folder}/ yourself if you trust it",
        )  # fmt: skip
        assert not where.exists(), "what was fetched is not kept"
        with monkeypatch.context() as patch:
            known(patch, name, archive)
            assert load(name).num_nodes in (NODES, 4 * NODES)
        assert not where.exists()


def test_an_archive_put_there_by_hand_is_checked_and_kept(folder: Path) -> None:
    raw_files.reddit(folder / "files")
    (folder / "Reddit/raw").mkdir(parents=True)
    archive = packed(folder / "files", folder / "Reddit/raw/reddit.zip")
    refused("reddit", f"{archive} is not the known reddit.zip")
    assert archive.is_file()


def test_an_archive_that_came_damaged_is_fetched_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw_files.reddit(folder / "files")
    archive = packed(folder / "files", folder / "half")
    archive.write_bytes(archive.read_bytes()[:500])
    serves(monkeypatch, archive)
    refused("reddit", "reddit.zip came damaged (BadZipFile", "and put it, still packed, into ")
    assert not (folder / "Reddit/raw/reddit.zip").exists()


class Runs:
    """A pickle that copies a file when it is opened.

    torch itself refuses what os offers, whoever asks; a function of another module is what PyG
    would open on a second try.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return shutil.copyfile, (__file__, str(self.path))


def test_a_processed_file_that_could_run_code_is_refused(folder: Path) -> None:
    raw_files.reddit(folder / "Reddit/raw")
    load("reddit")
    kept = folder / "Reddit/processed/data.pt"
    torch.save((Runs(folder / "ran"), None, dict), kept)
    refused(
        "reddit",
        f"{kept.parent} cannot be read (it holds more than tensors, ",
        "copyfile, and could run code, so it was not opened); delete it: it is made again",
    )
    assert not (folder / "ran").exists()
    kept.unlink()
    assert load("reddit").num_nodes == NODES


def test_a_folder_of_the_same_name_is_no_data_set(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw_files.reddit(folder / "Reddit/raw")
    monkeypatch.chdir(folder)
    (folder / "reddit").mkdir()
    config = TrainConfig(dataset="reddit", hidden=4, k=2, epochs=1, device="cpu", out="run")
    out, _ = run(config)
    assert TrainConfig.from_toml(out / "config.toml").dataset == "reddit"
    assert open_run(out, device="cpu").dataset.num_nodes == NODES


def test_a_path_is_no_name(folder: Path) -> None:
    raw_files.reddit(folder / "Reddit/raw")
    with pytest.raises(DataError, match="no data set is called 'reddit'"):
        load(Path("reddit"))


def test_a_silent_server_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(url: str, where: str) -> str:
        raise TimeoutError(f"nothing for {socket.getdefaulttimeout():.0f} s")

    monkeypatch.setattr("torch_geometric.data.download_url", silent)
    refused("reddit", "reddit cannot be fetched (TimeoutError: nothing for 60 s); get ")
    assert socket.getdefaulttimeout() is None


def test_a_name_is_described(folder: Path) -> None:
    raw_files.reddit(folder / "Reddit/raw")
    facts = describe("reddit")
    assert (facts.name, facts.nodes, facts.edges, facts.train) == ("reddit", NODES, len(BOTH), 6)


def test_features_and_labels_of_ones_own(folder: Path) -> None:
    raw_files.reddit(folder / "Reddit/raw")
    np.save(folder / "mine.npy", np.ones((NODES, 2)))
    assert load("reddit", features=folder / "mine.npy").num_features == 2


def test_a_file_in_the_data_folder_comes_first(folder: Path) -> None:
    np.savez(folder / "cora.npz", edge_index=np.array(PAIRS).T, y=np.arange(NODES) % 2)
    assert load("cora").num_nodes == NODES


def test_without_pyg(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    refused("cora", "by the package torch_geometric", 'type: pip install "maxk[pyg]"')


def statistics(loader: type) -> list[list[str]]:
    """The rows of the table in the docstring of one of PyG's classes, its head first."""
    rows: list[list[str]] = []
    for line in (loader.__doc__ or "").partition("**STATS:**")[2].splitlines():
        mark, _, cell = line.strip().partition("- ")
        if mark == "* ":
            rows.append([])
        if rows and mark in ("", "* ") and cell:
            rows[-1].append(cell)
    return rows


PYG = [entry for entry in catalog().values() if entry.source == "pyg"]


@pytest.mark.parametrize("entry", PYG, ids=lambda entry: entry.name)
def test_the_catalog_agrees_with_pyg(
    entry: Entry, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch_geometric import datasets

    loader = getattr(datasets, entry.loader)
    head, *rows = statistics(loader) or [[]]
    if head and entry.name != "ppi":  # its table is of the training graphs
        wanted = entry.arguments.get("name", rows[0][0])
        (row,) = [row for row in rows if row[0].lower() == wanted.lower()]
        facts = {name: int(v.replace(",", "")) for name, v in zip(head, row, strict=True)
                 if name != "Name"}  # fmt: skip
        assert entry.nodes == facts["#nodes"]
        assert entry.features == facts["#features"]
        assert entry.classes == facts.get("#classes", facts.get("#tasks"))
        # The table of this class counts what its files store: each edge once.
        once = entry.loader == "HeterophilousGraphDataset"
        assert entry.edges == facts["#edges"] * (2 if once else 1)
        assert entry.multi_label or "#tasks" not in facts
    asked = []

    def download(self: object) -> None:
        asked.append([Path(path) for path in self.raw_paths])
        raise OSError

    monkeypatch.setattr(loader, "download", download)
    with pytest.raises(OSError):
        loader(str(folder / entry.loader), **entry.arguments)
    assert asked == [[folder / entry.folder / file for file in entry.files]]


def test_the_default_device_is_not_the_loaders(folder: Path) -> None:
    raw_files.wikics(folder / "WikiCS/raw")
    want = load("wikics", split=1)
    shutil.rmtree(folder / "WikiCS/processed")
    torch.set_default_device("meta")
    try:
        got = load("wikics", split=1)
    finally:
        torch.set_default_device(None)
    assert torch.equal(got.x, want.x)
    assert masks(got) == masks(want)
    assert edges(got) == edges(want)
