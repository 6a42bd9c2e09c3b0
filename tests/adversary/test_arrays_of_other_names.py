"""Splits and weights in a file under other libraries' names were passed over without a word."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from maxk.cli.main import main
from maxk.core.errors import DataError
from maxk.data.load import load
from maxk.graph.files import load_graph

EDGES = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])
WEIGHT = np.array([1.0, 2, 3, 4], np.float32)


def made(folder: Path, **arrays: Any) -> Path:
    path = folder / "g.npz"
    whole = {"edge_index": EDGES, "y": np.array([0, 1, 1, 0]), "x": np.eye(4), **arrays}
    np.savez(path, **{name: value for name, value in whole.items() if value is not None})
    return path


def refused(path: Path, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(f"{path}: {message}")) as caught:
        load(path)
    assert "\n" not in str(caught.value)


def parts(path: Path, split: int | None = None) -> list[list[int]]:
    data = load(path, split=split)
    masks = (data.train_mask, data.val_mask, data.test_mask)
    return [mask.nonzero().flatten().tolist() for mask in masks]


@pytest.mark.parametrize(
    "names",
    [
        ("train_idx", "valid_idx", "test_idx"),
        ("train_idx", "val_idx", "test_idx"),
        ("idx_train", "idx_val", "idx_test"),
        ("train_index", "validation_index", "test_index"),
        ("train_nodes", "val_nodes", "test_nodes"),
        ("train_ids", "valid_ids", "test_ids"),
    ],
)
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_node_ids_of_a_split_are_used(tmp_path: Path, names: tuple[str, ...], dtype: str) -> None:
    ids = ([3, 0], [1], [[2]])
    arrays = {name: np.array(part, dtype) for name, part in zip(names, ids, strict=True)}
    assert parts(made(tmp_path, **arrays)) == [[0, 3], [1], [2]]


@pytest.mark.parametrize(
    "names",
    [
        ("train_mask", "valid_mask", "test_mask"),
        ("train_masks", "val_masks", "test_masks"),
        ("mask_train", "mask_valid", "mask_test"),
        ("train_idx", "valid_idx", "test_idx"),
    ],
)
def test_masks_of_a_split_are_used(tmp_path: Path, names: tuple[str, ...]) -> None:
    masks = ([1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0])
    arrays = {name: np.array(mask, bool) for name, mask in zip(names, masks, strict=True)}
    assert parts(made(tmp_path, **arrays)) == [[0, 3], [1], [2]]


@pytest.mark.parametrize("by_row", [True, False])
def test_several_masks_may_be_stored_by_row(tmp_path: Path, by_row: bool) -> None:
    columns = np.array([[1, 0], [0, 1], [0, 1], [1, 0]], bool)
    masks = {
        f"{part}_masks": np.ascontiguousarray(mask.T) if by_row else mask
        for part, mask in (("train", columns), ("val", ~columns))
    }
    path = made(tmp_path, **masks, test_mask=np.array([0, 0, 1, 1]))
    assert parts(path, split=0) == [[0, 3], [1, 2], [2, 3]]
    assert parts(path, split=1) == [[1, 2], [0, 3], [2, 3]]
    refused(path, "holds 2 splits and none is chosen")


@pytest.mark.parametrize("name", ["edge_weight", "weight", "weights", "edge_weights", "edge_attr"])
@pytest.mark.parametrize("column", [True, False])
def test_weights_are_used(tmp_path: Path, name: str, column: bool) -> None:
    path = made(tmp_path, **{name: WEIGHT[:, None] if column else WEIGHT})
    for graph in (load(path).graph, load_graph(path)):
        assert graph.weight is not None
        assert graph.weight.tolist() == [4, 1, 2, 3]
        assert graph.edge_index().tolist() == [[3, 0, 1, 2], [0, 1, 2, 3]]


@pytest.mark.parametrize("name", ["weight", "edge_weight", "edge_attr", "data"])
def test_weights_of_a_csr_file_are_used(tmp_path: Path, name: str) -> None:
    path = tmp_path / "g.npz"
    np.savez(path, indptr=[0, 1, 2], indices=[1, 0], **{name: np.array([0.5, 2])})
    weight = load_graph(path).weight
    assert weight is not None
    assert weight.tolist() == [0.5, 2]


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
@pytest.mark.parametrize("ones", [True, False])
def test_a_matrix_saved_by_scipy_keeps_direction_shape_and_weights(
    tmp_path: Path, layout: str, ones: bool
) -> None:
    path = tmp_path / "a.npz"
    values = np.ones(2, np.int64) if ones else np.array([0.5, 2])
    matrix = sp.coo_array((values, ([1, 0], [2, 3])), shape=(2, 5))
    sp.save_npz(path, matrix.asformat(layout))
    graph = load_graph(path)
    assert (graph.num_dst, graph.num_src) == (2, 5)
    assert graph.edge_index().tolist() == [[3, 2], [0, 1]]
    assert (graph.weight is None) if ones else (graph.weight.tolist() == [2, 0.5])  # type: ignore[union-attr]


def test_a_matrix_of_blocks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    sp.save_npz(path, sp.bsr_array(np.eye(4)))
    with pytest.raises(DataError, match=r"saved by SciPy in the format 'bsr'.*csr, csc or coo"):
        load_graph(path)


@pytest.mark.parametrize("features", ["features", "feat", "node_feat", "node_features"])
@pytest.mark.parametrize("labels", ["labels", "label", "node_label", "node_labels"])
def test_features_and_labels_are_used(tmp_path: Path, features: str, labels: str) -> None:
    arrays = {features: 2 * np.eye(4), labels: np.array([[0], [1], [2], [0]])}
    data = load(made(tmp_path, x=None, y=None, **arrays))
    assert torch.equal(data.x, 2 * torch.eye(4))
    assert data.y.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"split_idx": np.array([0, 1])}, "holds 'split_idx', which is not understood, so a split"),
        ({"stopping_masks": np.ones(4)}, "holds 'stopping_masks', which is not understood"),
        ({"folds": np.arange(4)}, "holds 'folds', which is not understood, so a split would be"),
        ({"train": np.arange(4)}, "holds 'train', which is not understood, so a split would be"),
        ({"class_weight": np.ones(2)}, "holds 'class_weight', which is not understood, so weights"),
        ({"edge_feat": np.ones((4, 3))}, "holds 'edge_feat', which is not understood, so weights"),
        ({"edge_attr": np.ones((4, 3))}, "edge_attr must hold 4 numbers, one per edge, got float64"
                                         " [4, 3]; leave it out, or make edge_weight of it"),
        ({"edge_attr": np.ones(4, int)}, "edge_attr must be floating-point numbers to be weights, "
                                         "got int64; call it edge_weight if it is"),
        ({"weight": WEIGHT, "edge_weight": WEIGHT}, "holds edge_weight and weight; keep one"),
        ({"features": np.eye(4)}, "holds x and features; keep one"),
        ({"labels": np.arange(4)}, "holds y and labels; keep one"),
        ({"train_idx": [0], "train_mask": [1, 0, 0, 0]}, "holds train_idx and train_mask; keep"),
        ({"val_idx": [0], "valid_idx": [1]}, "holds val_idx and valid_idx; keep one"),
        ({"train_idx": [0, 4], "val_idx": [1], "test_idx": [2]},
         "train_idx holds 4 at position 1; node ids lie in 0..3"),
        ({"train_idx": [-1], "val_idx": [1], "test_idx": [2]}, "train_idx holds -1 at position 0"),
        ({"train_idx": [0, 1, 1, 0], "val_idx": [1], "test_idx": [2]},
         "train_idx names node 0 twice; if it is a mask, call it train_mask"),
        ({"train_idx": [0.5], "val_idx": [1], "test_idx": [2]},
         "train_idx must hold node ids as integers, got float64 [1]"),
        ({"train_idx": [[0, 1], [1, 2]], "val_idx": [1], "test_idx": [2]},
         "train_idx must be a vector of node ids, got shape [2, 2]; several splits"),
        ({"train_mask": [0, 3, 1], "val_idx": [1], "test_idx": [2]},
         "train_mask must have 4 entries, one per node, got 3 (shape [3]); if it holds node ids, "
         "call it train_idx"),
        ({"train_idx": [0], "test_idx": [1]}, "holds train_idx, test_idx but no val_mask"),
    ],
)  # fmt: skip
def test_what_would_be_lost_is_an_error(
    tmp_path: Path, arrays: dict[str, Any], message: str
) -> None:
    refused(made(tmp_path, **arrays), message)


def test_what_is_harmless_is_named(tmp_path: Path) -> None:
    path = made(tmp_path, node_year=np.ones(4), pos=np.ones((4, 2)), num_edges=np.int64(4))
    assert f"{path}: not understood and not used: node_year, num_edges, pos" in load(path).notes


def test_describe_shows_what_is_used_and_what_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = {"train_idx": [0, 3], "valid_idx": [1], "test_idx": [2]}
    path = made(tmp_path, **ids, edge_attr=WEIGHT, pos=np.ones(4))
    assert main(["data", "describe", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["train"], facts["val"], facts["test"]) == (2, 1, 1)
    assert facts["weighted"]
    assert facts["notes"] == [f"{path}: not understood and not used: pos"]
    bare = made(tmp_path, y=None, pos=np.ones(4))
    assert main(["data", "describe", str(bare)]) == 0
    assert "not understood and not used: pos" in capsys.readouterr().out
    assert main(["train", "--dataset", str(made(tmp_path, split_idx=np.arange(4)))]) == 2
    assert "holds 'split_idx'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["d.pt", "d.pth", "d.pkl", "d.pickle"])
def test_a_pickle_is_named_as_such(tmp_path: Path, name: str) -> None:
    torch.save({"edge_index": torch.tensor(EDGES)}, tmp_path / name)
    with pytest.raises(DataError, match=r"is a pickle, which can run code.*numpy\.savez"):
        load(tmp_path / name)
