"""OGB's data sets by name: its own loader, split and evaluator, on raw tables."""

from __future__ import annotations

import builtins
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from data import raw_files
from data.conftest import edges, known, masks, refused
from data.raw_files import NODES, PAIRS
from maxk.data.catalog import catalog
from maxk.data.load import load
from maxk.data.ogb import OGBEvaluator, mean_of_edges
from maxk.train import metrics
from maxk.train.config import TrainConfig
from maxk.train.loop import Trainer

BOTH = {*PAIRS, *((t, s) for s, t in PAIRS)}
CLASSES = (np.arange(NODES) % 3)[:, None]


@pytest.fixture(autouse=True)
def nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*prompt: object) -> str:
        raise AssertionError(f"asked on the terminal: {prompt}")

    monkeypatch.setattr(builtins, "input", asked)


def arxiv(folder: Path) -> Path:
    raw_files.ogb(folder / "ogbn_arxiv", "time", CLASSES)
    return folder / "ogbn_arxiv"


def packed(folder: Path, inner: str) -> Path:
    """What OGB's server sends: the folder under a name of its own."""
    path = folder / f"{inner}.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in (folder / "ogbn_arxiv").rglob("*"):
            archive.write(file, Path(inner) / file.relative_to(folder / "ogbn_arxiv"))
    shutil.rmtree(folder / "ogbn_arxiv")
    return path


def test_arxiv_keeps_its_direction_and_split(folder: Path) -> None:
    arxiv(folder)
    data = load("ogbn-arxiv")
    assert edges(data) == set(PAIRS)
    assert masks(data) == [[0, 1, 2, 3, 4, 5], [6, 7], [8, 9]]
    assert data.y.tolist() == CLASSES[:, 0].tolist()
    assert np.allclose(data.x.numpy(), raw_files.dense(), atol=1e-6)
    assert any("--undirected" in note for note in data.notes)
    assert edges(load("ogbn-arxiv", undirected=True)) == BOTH


def test_the_second_load_reads_what_ogb_kept(folder: Path) -> None:
    arxiv(folder)
    first = load("ogbn_arxiv")
    for table in (folder / "ogbn_arxiv" / "raw").iterdir():
        table.write_bytes(b"")
    again = load("ogbn-arxiv")
    assert torch.equal(again.x, first.x)
    assert torch.equal(again.graph.edge_index(), first.graph.edge_index())


def test_products_has_both_directions(folder: Path) -> None:
    raw_files.ogb(folder / "ogbn_products", "sales_ranking", CLASSES)
    assert edges(load("ogbn-products")) == BOTH


def test_proteins_gets_features_from_its_edges(folder: Path) -> None:
    labels = (np.arange(NODES * 112).reshape(NODES, 112) % 5 < 2).astype(int)
    raw_files.ogb(folder / "ogbn_proteins", "species", labels, edge_features=True)
    data = load("ogbn-proteins")
    assert (data.metric, data.num_classes, data.multi_label) == ("roc_auc", 112, True)
    assert np.array_equal(data.y.numpy(), labels)
    rows = np.arange(len(PAIRS) * 8).reshape(-1, 8) / 16
    for node in range(NODES):
        touching = [row for row, pair in zip(rows, PAIRS, strict=True) if node in pair]
        assert np.allclose(data.x[node].numpy(), np.mean(touching, axis=0))


def test_proteins_trains_on_all_tasks(folder: Path) -> None:
    labels = (np.arange(NODES * 112).reshape(NODES, 112) % 5 < 2).astype(int)
    raw_files.ogb(folder / "ogbn_proteins", "species", labels, edge_features=True)
    config = TrainConfig(
        dataset="ogbn-proteins", hidden=32, k=8, layers=1, epochs=60, lr=0.02, dropout=0.0,
        device="cpu",
    )  # fmt: skip
    trainer = Trainer(config)
    assert trainer.fit()["metric"] == "roc_auc"
    scores = trainer.evaluate()
    assert scores["train"] > 0.75
    # What an epoch says is what OGB's evaluator says of it.
    last = trainer.history[-1]
    assert [last.train, last.val, last.test] == pytest.approx(list(scores.values()), abs=1e-6)
    assert scores["val"] == OGBEvaluator("ogbn-proteins")(
        trainer.predict()[trainer.dataset.val_mask], trainer.dataset.y[trainer.dataset.val_mask]
    )
    assert last.loss < 0.9 * trainer.history[0].loss


def test_a_node_without_edges_gets_zeros() -> None:
    x = mean_of_edges(np.array([2, 2, 0]), np.array([[1.0, 8], [3, 4], [5, 6]]), 4)
    assert x.tolist() == [[5, 6], [0, 0], [2, 6], [0, 0]]


def test_scores_are_those_of_ogbs_evaluator(folder: Path) -> None:
    from ogb.nodeproppred import Evaluator

    arxiv(folder)
    config = TrainConfig(dataset="ogbn-arxiv", hidden=8, k=4, epochs=2, norm="none", device="cpu")
    trainer = Trainer(config)
    trainer.fit()
    logits, test = trainer.predict(), trainer.dataset.test_mask
    asked = {"y_true": CLASSES[8:], "y_pred": logits[test].argmax(1, keepdim=True).numpy()}
    assert trainer.evaluate()["test"] == Evaluator("ogbn-arxiv").eval(asked)["acc"]
    assert isinstance(trainer.dataset.evaluator, OGBEvaluator)

    random = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 112, generator=random)
    y = (torch.rand(50, 112, generator=random) < 0.3).float()
    auc = OGBEvaluator("ogbn-proteins")(logits, y)
    asked = {"y_true": y.numpy(), "y_pred": logits.numpy()}
    assert auc == Evaluator("ogbn-proteins").eval(asked)["rocauc"]
    assert auc == pytest.approx(metrics.roc_auc(logits, y), abs=1e-12)


def test_the_trainer_asks_the_evaluator(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arxiv(folder)
    monkeypatch.setattr(OGBEvaluator, "__call__", lambda self, logits, y: len(y) / 100)
    config = TrainConfig(dataset="ogbn-arxiv", hidden=8, k=4, epochs=1, device="cpu")
    assert Trainer(config).evaluate() == {"train": 0.06, "val": 0.02, "test": 0.02}


def test_labels_of_ones_own_are_not_ogbs_to_score(folder: Path) -> None:
    arxiv(folder)
    np.save(folder / "mine.npy", np.arange(NODES) % 2)
    assert load("ogbn-arxiv", labels=folder / "mine.npy").evaluator is None


def test_an_archive_put_there_by_hand_is_checked_and_unpacked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arxiv(folder)
    archive = packed(folder, "arxiv")
    refused("ogbn-arxiv", f"{archive} is not the known arxiv.zip: its SHA-256 is ",
            f"or unpack it into {folder / 'ogbn_arxiv'}/ yourself")  # fmt: skip
    assert archive.is_file()
    known(monkeypatch, "ogbn-arxiv", archive)
    assert edges(load("ogbn-arxiv")) == set(PAIRS)
    assert not archive.exists()
    assert sorted(path.name for path in folder.iterdir()) == ["ogbn_arxiv"]


def test_a_large_download_asks_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ogb.utils.url

    raw_files.ogb(folder / "ogbn_arxiv", "sales_ranking", CLASSES)
    kept = packed(folder, "products").rename(folder / "elsewhere")
    monkeypatch.setattr(
        ogb.utils.url,
        "download_url",
        lambda url, where: shutil.copy(kept, Path(where) / url.rpartition("/")[2]),
    )
    refused("ogbn-products", "products.zip is not the known products.zip")
    assert list(folder.iterdir()) == [kept], "what was fetched is not kept"
    known(monkeypatch, "ogbn-products", kept)
    assert load("ogbn-products").num_nodes == NODES


def test_no_network(folder: Path) -> None:
    refused(
        "ogbn-products", "ogbn-products cannot be fetched (", "no network here",
        "get http://snap.stanford.edu/ogb/data/nodeproppred/products.zip "
        f"and put it, still packed, into {folder}/",
    )  # fmt: skip
    assert not list(folder.iterdir())


def test_another_release_is_an_error_and_no_question(folder: Path) -> None:
    (arxiv(folder) / "RELEASE_v1.txt").unlink()
    refused("ogbn-arxiv", f"{folder / 'ogbn_arxiv'} lacks RELEASE_v1.txt", "delete the folder")


def test_a_damaged_archive(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arxiv(folder)
    archive = packed(folder, "arxiv")
    archive.write_bytes(archive.read_bytes()[:-200])
    refused("ogbn-arxiv", f"{archive} is damaged (BadZipFile", "delete it and try again")
    assert archive.is_file()
    with zipfile.ZipFile(archive, "w") as other:
        other.writestr("holiday/photo.txt", "sea")
    known(monkeypatch, "ogbn-arxiv", archive)
    refused("ogbn-arxiv", f"{archive} holds no folder with raw/ in it, so it is not ogbn-arxiv")


@pytest.mark.parametrize("file", ["raw/edge.csv.gz", "split/time/valid.csv.gz"])
def test_a_truncated_table_is_named(folder: Path, file: str) -> None:
    path = arxiv(folder) / file
    path.write_bytes(path.read_bytes()[:-9])
    refused("ogbn-arxiv", f"{path} is damaged (EOFError", "delete it and try again")


def test_a_split_outside_the_graph(folder: Path) -> None:
    raw_files.table(arxiv(folder) / "split/time/valid.csv.gz", np.array([[6], [NODES]]))
    refused("ogbn-arxiv", f"the valid split names nodes outside 0..{NODES - 1}")


class Runs:
    """A pickle that copies a file when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return shutil.copyfile, (__file__, str(self.path))


@pytest.mark.parametrize(
    "file", ["processed/geometric_data_processed.pt", "split/time/split_dict.pt"]
)
def test_a_pickle_that_could_run_code_is_refused(folder: Path, file: str) -> None:
    path = arxiv(folder) / file
    load("ogbn-arxiv")
    torch.save((Runs(folder / "ran"), None), path)
    refused("ogbn-arxiv", "copyfile, and could run code, so it was not opened", "delete")
    assert not (folder / "ran").exists()


def test_a_saved_split_of_arrays_opens(folder: Path) -> None:
    path = arxiv(folder) / "split/time/split_dict.pt"
    ids = {"train": np.array([0, 1]), "valid": np.array([2]), "test": torch.tensor([3])}
    torch.save(ids, path)
    assert masks(load("ogbn-arxiv")) == [[0, 1], [2], [3]]


def test_loading_asks_no_server_for_news(tmp_path: Path) -> None:
    arxiv(tmp_path)
    code = (
        "import threading; from maxk.data.load import load; load('ogbn-arxiv'); import sys;"
        "print(*(t.name for t in threading.enumerate() if 'check' in t.name), "
        "'outdated' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path,
        env={"MAXK_DATA_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"}, check=True,
    )  # fmt: skip
    assert run.stdout.split() == ["False"], "and OGB's progress is not on stdout"


def test_without_ogb(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ogb", None)
    refused("ogbn-arxiv", "by the package ogb", 'type: pip install "maxk[data]"')


def test_the_catalog_agrees_with_ogbs_table() -> None:
    import ogb.nodeproppred

    lines = Path(ogb.nodeproppred.__file__).with_name("master.csv").read_text().splitlines()
    names, *rows = (line.split(",") for line in lines)
    table = {row[0]: dict(zip(names, row, strict=False)) for row in rows}
    ours = {name: entry for name, entry in catalog().items() if entry.source == "ogb"}
    assert len(ours) == 3
    for name, entry in ours.items():
        assert entry.page == table["url"][name]
        assert entry.metric == {"acc": "accuracy", "rocauc": "roc_auc"}[table["eval metric"][name]]
        assert table["is hetero"][name] == "False"
        tasks = int(table["num tasks"][name])
        assert entry.multi_label == (tasks > 1)
        assert entry.classes == (tasks if tasks > 1 else int(table["num classes"][name]))
        assert entry.archive == entry.page.rpartition("/")[2]
        assert entry.folder == f"{name.replace('-', '_')}/raw"
