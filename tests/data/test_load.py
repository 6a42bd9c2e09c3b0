from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from maxk.core.errors import DataError
from maxk.core.settings import settings
from maxk.data.dataset import Dataset
from maxk.data.load import load, symmetrise
from maxk.graph.files import Edges

TRUE, FALSE = True, False


def arrays(**changes: Any) -> dict[str, Any]:
    """A whole data set of four nodes, with some arrays replaced (None takes one away)."""
    whole = {
        "edge_index": np.array([[0, 1, 3], [1, 2, 0]], np.int32),
        "x": np.arange(8, dtype=np.float64).reshape(4, 2),
        "y": np.array([0, 1, 1, 0], np.int16),
        "train_mask": np.array([1, 0, 0, 1], bool),
        "val_mask": np.array([0, 1, 0, 0], bool),
        "test_mask": np.array([0, 0, 1, 0], bool),
    }
    return {name: value for name, value in {**whole, **changes}.items() if value is not None}


def made(folder: Path, **changes: Any) -> Path:
    path = folder / "g.npz"
    np.savez(path, **arrays(**changes))
    return path


def refused(path: Path | str, message: str, **options: Any) -> None:
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        load(path, **options)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_plain_npz(tmp_path: Path) -> None:
    data = load(made(tmp_path))
    assert isinstance(data, Dataset)
    assert data.name == "g"
    assert data.graph.edge_index().tolist() == [[3, 0, 1], [0, 1, 2]]
    assert data.x.dtype == torch.float32
    assert data.x.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert (data.y.dtype, data.y.tolist()) == (torch.int64, [0, 1, 1, 0])
    assert data.train_mask.tolist() == [TRUE, FALSE, FALSE, TRUE]
    assert (data.num_classes, data.metric, data.notes) == (2, "accuracy", ())
    assert repr(data) == "Dataset(g: 4 nodes, 3 edges, 2 features, 2 classes, accuracy)"


def test_a_name_stands_for_a_file_in_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path)
    monkeypatch.setenv("MAXK_DATA_DIR", str(tmp_path))
    settings.cache_clear()
    try:
        assert load("g").num_nodes == 4
        refused("absent", f"no data set is called 'absent' and no such file exists; the names are "
                f"digits, synthetic and those of 'maxk data list', files end in .npz, .txt, .csv, "
                f".tsv, .mtx, and {tmp_path / 'absent.npz'} is not there")  # fmt: skip
    finally:
        settings.cache_clear()
    refused(tmp_path / "absent.npz", "absent.npz: no such file")


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", ">f8"])
def test_features_of_any_number_type_become_float32(tmp_path: Path, dtype: str) -> None:
    x = load(made(tmp_path, x=np.eye(4, dtype=dtype))).x
    assert x.dtype == torch.float32
    assert torch.equal(x, torch.eye(4))


def sparse_parts(**changes: Any) -> dict[str, Any]:
    parts = {
        "x_data": np.array([1, 2, 3], np.uint8),
        "x_indices": np.array([2, 0, 4], np.int32),
        "x_indptr": np.array([0, 2, 2, 3, 3], np.int32),
        "x_shape": np.array([4, 5]),
    }
    return {"x": None, **parts, **changes}


def test_sparse_features_stay_sparse(tmp_path: Path) -> None:
    x = load(made(tmp_path, **sparse_parts())).x
    assert (x.layout, x.dtype) == (torch.sparse_csr, torch.float32)
    expected = torch.zeros(4, 5)
    expected[0, 2], expected[0, 0], expected[2, 4] = 1, 2, 3
    assert torch.equal(x.to_dense(), expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_indptr": None}, "sparse features lack x_indptr"),
        ({"x_indptr": np.array([0, 2, 3])}, "x_indptr must have 5 entries for the 4 rows"),
        ({"x_indptr": np.array([0, 3, 2, 3, 3])}, "x_indptr must rise from 0 to the number"),
        ({"x_indices": np.array([2, 0, 5])}, "x_indices holds the column 5 at position 2, but "
                                             "x_shape allows 0..4"),
        ({"x_data": np.ones(2)}, "x_data and x_indices must be equally long, got 2 and 3"),
        ({"x_data": np.array([1, np.nan, 1])}, "x must be finite, got nan at row 0, column 0"),
        ({"x_shape": np.array([3, 5]), "x_indptr": np.array([0, 2, 2, 3])},
         "the node counts disagree: x has 3 rows, y has 4 rows, edges reach id 3"),
    ],
)  # fmt: skip
def test_broken_sparse_features(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    refused(made(tmp_path, **sparse_parts(**changes)), message)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.array(["a"] * 4), "x must hold numbers, got <U1"),
        (np.zeros((4, 0)), "x must have at least one column, got shape [4, 0]"),
        (np.zeros((4, 1, 1)), "x must have shape [N, F], got [4, 1, 1]"),
        (np.array([[0, 1], [2, 3], [4, np.inf], [0, 0]]),
         "x must be finite, got inf at row 2, column 1"),
    ],
)  # fmt: skip
def test_broken_features(tmp_path: Path, x: np.ndarray, message: str) -> None:
    refused(made(tmp_path, x=x), message)


def test_counts_that_disagree_are_all_named(tmp_path: Path) -> None:
    refused(
        made(tmp_path, x=np.zeros((3, 2))),
        "g.npz: the node counts disagree: x has 3 rows, y has 4 rows, edges reach id 3",
    )
    refused(
        made(tmp_path, num_nodes=np.int64(5)),
        "the node counts disagree: x has 4 rows, y has 4 rows, the graph has 5 rows",
    )


@pytest.mark.parametrize(
    ("edge_index", "message"),
    [
        (
            [[0, 4], [1, 0]],
            "edge_index holds the source id 4 at position 1, which lies outside 0..3",
        ),
        (
            [[0, -1], [1, 0]],
            "edge_index holds the source id -1 at position 1, which lies outside 0..3",
        ),
        (
            [[2, 0], [-7, 1]],
            "edge_index holds the target id -7 at position 0, which lies outside 0..3",
        ),
        ([[1, 2, 4], [2, 4, 3]], "the ids run from 1 to 4, so they look 1-based: subtract 1"),
    ],
)
def test_ids_outside_the_graph(tmp_path: Path, edge_index: Any, message: str) -> None:
    refused(made(tmp_path, edge_index=np.array(edge_index)), message)
    assert load(made(tmp_path)).num_nodes == 4


def test_float_ids_are_refused(tmp_path: Path) -> None:
    refused(made(tmp_path, edge_index=np.zeros((2, 3))), "must hold integers, got float64")


def test_files_that_hold_too_little(tmp_path: Path) -> None:
    refused(made(tmp_path, edge_index=None), "holds no edges: needs edge_index")
    refused(made(tmp_path, y=None), "holds no labels; give y in the .npz, a file g.labels.npy")
    refused(made(tmp_path, val_mask=None), "holds train_mask, test_mask but no val_mask")
    data = load(made(tmp_path, x=None))
    assert torch.equal(data.x.to_dense(), torch.eye(4))
    assert data.notes == ("no features: each node gets a column of its own (one-hot)",)


@pytest.mark.parametrize("y", [[0, -1, 1, 0], [0.0, np.nan, 1.0, 0.0], [[0], [-1], [1], [0]]])
def test_unlabelled_nodes_are_in_no_mask(tmp_path: Path, y: Any) -> None:
    masks = {"train_mask": np.array([1, 1, 0, 0], bool), "val_mask": np.array([0, 0, 0, 1], bool)}
    data = load(made(tmp_path, y=np.array(y), **masks))
    assert data.y.tolist() == [0, -1, 1, 0]
    assert data.labelled.tolist() == [TRUE, FALSE, TRUE, TRUE]
    assert data.train_mask.tolist() == [TRUE, FALSE, FALSE, FALSE]
    assert data.notes == (
        "1 of 4 nodes have no label (-1 or NaN): they are in no split",
        "train_mask: 1 unlabelled nodes taken out",
    )


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0, 1, 2.5, 0], "y holds 2.5 at node 2; classes are whole numbers from 0"),
        ([0, 1, -2, 0], "y holds -2 at node 2; classes count from 0, and -1 means unlabelled"),
        ([-1, -1, -1, -1], "y: none of the 4 nodes has a label"),
        (["a", "b", "a", "b"], "y must hold numbers, got <U1; number the classes from 0"),
        ([[0, 1], [1, 1], [2, 0], [3, 1]], "y holds 2 at node 2, column 0; the 2 columns are read"),
        (np.zeros((4, 0)), "y must have shape [N] or [N, C], got [4, 0]"),
    ],
)
def test_broken_labels(tmp_path: Path, y: Any, message: str) -> None:
    refused(made(tmp_path, y=np.array(y)), message)


def test_the_class_count(tmp_path: Path) -> None:
    data = load(made(tmp_path, y=np.array([1, 2, 2, 1])))
    assert data.num_classes == 3
    assert data.notes == ("1 of 3 classes have no node: do the classes count from 1?",)
    assert load(made(tmp_path, num_classes=np.int64(5))).num_classes == 5
    refused(made(tmp_path, num_classes=np.int64(1)), "y holds 1 at node 1; num_classes is 1: 0..0")


def test_multi_label(tmp_path: Path) -> None:
    y = np.array([[1, 0, 1], [0, 0, 1], [0, 0, 0], [1, 1, 1]])
    data = load(made(tmp_path, y=y))
    assert data.multi_label
    assert (data.y.dtype, data.y.tolist()) == (torch.float32, y.tolist())
    assert (data.num_classes, data.metric, data.notes) == (3, "micro_f1", ())
    y = y.astype(float)
    y[3, 0] = np.nan
    data = load(made(tmp_path, y=y))
    assert data.labelled.tolist() == [TRUE, TRUE, TRUE, FALSE]
    assert data.train_mask.tolist() == [TRUE, FALSE, FALSE, FALSE]
    refused(made(tmp_path, y=y, num_classes=np.int64(4)), "y has 3 columns, but num_classes is 4")
    assert "every node has exactly one" in load(made(tmp_path, y=np.eye(4))).notes[0]


def meta(**facts: Any) -> np.ndarray:
    return np.array(json.dumps(facts))


def test_the_metric_is_the_sources(tmp_path: Path) -> None:
    data = load(made(tmp_path, meta=meta(metric="roc_auc", name="small")))
    assert (data.name, data.metric, data.notes) == ("small", "roc_auc", ())
    data = load(made(tmp_path, meta=meta(metric="roc_auc"), y=np.array([0, 1, 2, 0])))
    assert data.metric == "accuracy"
    assert "metric 'roc_auc' of the source does not fit 3 single-label classes" in data.notes[0]
    assert load(made(tmp_path, meta=meta(metric="loss"))).metric == "accuracy"
    refused(made(tmp_path, meta=np.array("{")), "meta must be one JSON object as text")
    refused(made(tmp_path, meta=np.array("[]")), "meta must be one JSON object as text (list)")


def several() -> dict[str, np.ndarray]:
    return {
        "train_mask": np.array([[1, 0], [0, 1], [0, 1], [1, 0]], bool),
        "val_mask": np.array([[0, 1], [1, 0], [0, 0], [0, 0]], bool),
        "test_mask": np.array([0, 0, 1, 1], np.uint8),
    }


def test_one_of_several_splits_must_be_chosen(tmp_path: Path) -> None:
    path = made(tmp_path, **several())
    refused(path, "holds 2 splits and none is chosen; choose one with split=0..1 (--split)")
    refused(path, "split must lie in 0..1, as the file holds 2 splits, got split=2", split=2)
    refused(path, "got split=-1", split=-1)
    data = load(path, split=0)
    assert data.train_mask.nonzero().flatten().tolist() == [0, 3]
    assert data.notes == ("warning: train and test masks overlap in 1 nodes",)
    data = load(path, split=1)
    assert data.train_mask.nonzero().flatten().tolist() == [1, 2]
    # A mask without a split axis serves every split.
    assert data.test_mask.nonzero().flatten().tolist() == [2, 3]


def test_one_split_as_a_column_needs_no_choice(tmp_path: Path) -> None:
    columns = {name: mask[:, :1] for name, mask in several().items() if mask.ndim == 2}
    path = made(tmp_path, **columns)
    assert load(path).train_mask.tolist() == load(path, split=0).train_mask.tolist()
    refused(path, "split must lie in 0..0, as the file holds 1 split, got split=1", split=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_mask": np.zeros(4, bool)}, "train_mask is False for all nodes"),
        ({"test_mask": np.ones(5, bool)}, "test_mask must have 4 entries, one per node, got 5"),
        ({"val_mask": np.ones((2, 4), bool)}, "got 2 (shape [2, 4]); transpose it to [N, S]"),
        ({"val_mask": np.array([0, 2, 3, 1])}, "val_mask must hold True and False, one for each"),
        ({"y": np.array([0, -1, 0, 0])}, "val_mask holds no labelled node"),
        ({"val_mask": np.ones((4, 2), bool), "test_mask": np.ones((4, 3), bool)},
         "the masks hold different numbers of splits: train_mask [4], val_mask [4, 2]"),
    ],
)  # fmt: skip
def test_broken_masks(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    refused(made(tmp_path, **changes), message)


def random_task(folder: Path, nodes: int = 400, **changes: Any) -> Path:
    random = np.random.default_rng(0)
    np.savez(
        folder / "r.npz",
        **{
            "edge_index": random.integers(0, nodes, (2, 3 * nodes)),
            "y": random.choice(4, nodes, p=[0.6, 0.25, 0.1, 0.05]),
            **changes,
        },
    )
    return folder / "r.npz"


def test_a_missing_split_is_made(tmp_path: Path) -> None:
    path = random_task(tmp_path)
    data = load(path, seed=3)
    masks = torch.stack([data.train_mask, data.val_mask, data.test_mask])
    assert masks.sum(0).eq(1).all()
    assert masks.sum(1).tolist() == [240, 80, 80]
    share = torch.stack([torch.bincount(data.y[mask]) / mask.sum() for mask in masks])
    assert (share - share[0]).abs().max() < 0.02
    assert (
        "no split given: made a stratified one with seed 3: 240 train, 80 val, 80 test nodes"
        in data.notes
    )
    assert torch.equal(load(path, seed=3).train_mask, data.train_mask)
    assert not torch.equal(load(path, seed=4).train_mask, data.train_mask)
    assert load(path, seed=2**40 + 3).train_mask.any()
    refused(path, "holds no splits, so split=1 names none", split=1)


def test_a_split_is_made_with_rare_classes_and_gaps(tmp_path: Path) -> None:
    y = np.zeros(50, int)
    y[:3], y[3], y[40:] = 1, 2, -1
    data = load(random_task(tmp_path, 50, y=y))
    masks = torch.stack([data.train_mask, data.val_mask, data.test_mask])
    assert masks.sum(1).tolist() == [24, 8, 8]
    assert not masks[:, 40:].any()


@pytest.mark.parametrize("nodes", [3, 4, 7])
def test_a_split_of_very_few(tmp_path: Path, nodes: int) -> None:
    data = load(random_task(tmp_path, nodes, y=np.arange(nodes)))
    assert min(int(mask.sum()) for mask in (data.train_mask, data.val_mask, data.test_mask)) >= 1
    refused(random_task(tmp_path, 2), "a split needs at least 3 labelled nodes, got 2")


def test_a_multi_label_split_is_plain_random(tmp_path: Path) -> None:
    y = np.random.default_rng(0).integers(0, 2, (30, 5))
    assert (
        "made a random one with seed 0: 18 train" in load(random_task(tmp_path, 30, y=y)).notes[1]
    )


def test_undirected_adds_the_other_direction_once(tmp_path: Path) -> None:
    edge_index = np.array([[0, 1, 0, 2, 3], [1, 0, 1, 2, 1]])
    path = made(tmp_path, edge_index=edge_index)
    assert load(path).graph.num_edges == 5
    graph = load(path, undirected=True).graph
    pairs = sorted(zip(*graph.edge_index().tolist(), strict=True))
    assert pairs == [(0, 1), (1, 0), (1, 3), (2, 2), (3, 1)]
    assert graph.weight is None
    looped = load(path, undirected=True, self_loops=True).graph
    assert looped.num_edges == 8
    assert set(zip(*looped.edge_index().tolist(), strict=True)) - set(pairs) == {
        (0, 0),
        (1, 1),
        (3, 3),
    }


def test_undirected_averages_weights() -> None:
    edges = Edges(torch.tensor([[0, 1, 2], [1, 0, 2]]), torch.tensor([1.0, 3.0, 5.0]))
    both = symmetrise(edges, 3)
    assert both.edge_index.tolist() == [[1, 0, 2], [0, 1, 2]]
    assert both.weight is not None
    assert both.weight.tolist() == [2, 2, 5]


def test_edges_stored_once_are_pointed_out(tmp_path: Path) -> None:
    path = made(tmp_path, meta=meta(directed=False, both_directions_stored=False))
    assert "unless undirected=True (--undirected)" in load(path).notes[0]
    assert load(path, undirected=True).notes == ()


def test_scaling(tmp_path: Path) -> None:
    x = np.array([[1, -3], [0, 0], [2, 2], [5, 3]])
    path = made(tmp_path, x=x)
    assert load(path, scaling="row").x.tolist() == [
        [0.25, -0.75],
        [0, 0],
        [0.5, 0.5],
        [0.625, 0.375],
    ]
    standard = load(path, scaling="standard").x
    torch.testing.assert_close(standard.mean(0), torch.zeros(2))
    torch.testing.assert_close(standard.std(0, correction=0), torch.ones(2))
    with pytest.raises(ValueError, match="scaling must be one of none, row, standard, got 'l2'"):
        load(path, scaling="l2")  # type: ignore[arg-type]


def test_scaling_of_sparse_features(tmp_path: Path) -> None:
    path = made(tmp_path, **sparse_parts())
    raw = load(path).x.to_dense()
    row = load(path, scaling="row").x
    assert row.layout == torch.sparse_csr
    torch.testing.assert_close(row.to_dense(), raw / raw.sum(1, keepdim=True).clamp_min(1e-9))
    standard = load(path, scaling="standard").x
    deviation = raw.std(0, correction=0)
    torch.testing.assert_close(standard.to_dense(), raw / deviation.where(deviation > 0, 1))


def side_by_side(folder: Path) -> Path:
    (folder / "g.txt").write_text("source target\n0 1\n1 2\n\n3 0\n\n")
    np.save(folder / "g.features.npy", np.eye(4))
    (folder / "g.labels.csv").write_text("label\n0\n1\n1\n0\n")
    return folder / "g.txt"


def test_an_edge_list_with_files_beside_it(tmp_path: Path) -> None:
    path = side_by_side(tmp_path)
    data = load(path)
    assert data.graph.edge_index().tolist() == [[3, 0, 1], [0, 1, 2]]
    assert torch.equal(data.x, torch.eye(4))
    assert data.y.tolist() == [0, 1, 1, 0]
    for mask, value in (
        ("train", "1\n1\n0\n0\n"),
        ("val", "0\n0\n1\n0\n"),
        ("test", "0\n0\n0\n1\n"),
    ):
        (tmp_path / f"g.{mask}_mask.tsv").write_text(value)
    data = load(path)
    assert data.train_mask.tolist() == [TRUE, TRUE, FALSE, FALSE]
    assert data.notes == ()


def test_features_and_labels_may_be_named(tmp_path: Path) -> None:
    path = side_by_side(tmp_path)
    (tmp_path / "other.csv").write_text("1,0\n0,1\n1,1\n0,0\n")
    np.save(tmp_path / "numbers.npy", np.arange(4))
    data = load(path, features=tmp_path / "numbers.npy", labels=str(tmp_path / "other.csv"))
    assert data.x.tolist() == [[0], [1], [2], [3]]
    assert (data.multi_label, data.num_classes) == (True, 2)
    with pytest.raises(DataError, match=r"x\.json: expected one of \.npy, \.txt"):
        load(path, labels="x.json")
    with pytest.raises(DataError, match=r"absent\.npy: no such file"):
        load(path, labels="absent.npy")
    with pytest.raises(DataError, match="digits brings its own features and labels"):
        load("digits", labels="y.npy")


def test_faults_of_files_side_by_side_name_each_file(tmp_path: Path) -> None:
    path = side_by_side(tmp_path)
    labels, features = tmp_path / "g.labels.csv", tmp_path / "g.features.npy"
    np.save(features, np.eye(3))
    refused(path, f"{path}: the node counts disagree: {features} has 3 rows, {labels} has 4 rows, "
            "edges reach id 3")  # fmt: skip
    np.save(features, np.eye(4))
    path.write_text("# made by hand\n1 2\n\n2 3\n3 4\n")
    refused(path, f"{path}:5: target id 4 lies outside 0..3 (the data set has 4 nodes); "
            "the ids run from 1 to 4, so they look 1-based: subtract 1")  # fmt: skip
    path.write_text("0 1\n0 one\n")
    refused(path, f"{path}:2: expected an integer node id in field 2, got 'one'")
    side_by_side(tmp_path)
    labels.write_text("label\n0\n1\ncat\n0\n")
    with pytest.raises(DataError, match=re.escape(f"{labels}:4: expected a number in field 1")):
        load(path)
    labels.write_text("label\n0\n1\n1.5\n0\n")
    with pytest.raises(DataError, match=re.escape(f"{labels} holds 1.5 at node 2")):
        load(path)
    np.save(tmp_path / "g.labels.npy", np.zeros(4))
    refused(path, "g.labels.npy and g.labels.csv are both next to it; keep one")


def test_a_matrix_market_file_with_labels_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "m.mtx"
    path.write_text("%%MatrixMarket matrix coordinate real general\n4 4 2\n2 1 0.5\n3 2 2\n")
    (tmp_path / "m.labels.txt").write_text("0\n1\n0\n1\n")
    graph = load(path).graph
    assert graph.edge_index().tolist() == [[0, 1], [1, 2]]
    assert graph.weight is not None
    assert graph.weight.tolist() == [0.5, 2]
    path.write_text("%%MatrixMarket matrix coordinate pattern general\n4 3 1\n2 1\n")
    refused(path, "must be square, got 4 rows and 3 columns")


def test_no_half_built_cache_stays(tmp_path: Path) -> None:
    path = made(tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    refused(path, "not a whole .npz archive: cut short or damaged (100 bytes")
    assert list(tmp_path.iterdir()) == [path]


def test_a_dataset_made_by_hand_is_checked(tmp_path: Path) -> None:
    data = load(made(tmp_path))
    parts = {name: getattr(data, name) for name in ("name", "graph", "x", "y", "num_classes")}
    masks = {name: getattr(data, name) for name in ("train_mask", "val_mask", "test_mask")}
    for change, message in (
        ({"x": data.x[:3]}, "x must have 4 rows, one per node of the graph, got shape [3, 2]"),
        ({"x": data.x.double()}, "x must be float32 [N, F], got torch.float64 [4, 2]"),
        ({"y": data.y.float()}, "y must be int64 [N] or float32 [N, C], got torch.float32 [4]"),
        ({"y": torch.zeros(4, 3)}, "y has 3 columns, num_classes is 2"),
        ({"val_mask": torch.ones(4)}, "val_mask must be bool [N], got torch.float32 [4]"),
        ({"metric": "f2"}, "metric must be one of accuracy, micro_f1, roc_auc, got 'f2'"),
    ):
        with pytest.raises(DataError, match=re.escape(message)):
            Dataset(**{**parts, **masks, **change})
    moved = data.to("cpu")
    assert torch.equal(moved.x, data.x)
    assert moved.notes == data.notes
