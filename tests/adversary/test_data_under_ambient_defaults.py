"""Data were loaded onto torch's default device, or in its default dtype, in place of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import maxk
from maxk.data.describe import describe
from maxk.data.features import scale_features
from maxk.data.load import load
from maxk.data.synthetic import SyntheticConfig, generate, node_features
from maxk.graph.files import load_graph, save_graph

EDGES = np.array([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])


@pytest.fixture(params=["meta", "float64", "both"])
def ambient(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Sets torch's defaults when called, so that a test can load without them first."""

    def set_defaults() -> None:
        if request.param != "float64":
            torch.set_default_device("meta")
        if request.param != "meta":
            torch.set_default_dtype(torch.float64)

    yield set_defaults
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)


def files(folder: Path) -> dict[str, Path]:
    y = np.array([0, 1, 0, 1, -1, 1])
    weight = np.arange(6, dtype=np.float32)
    np.savez(folder / "w.npz", edge_index=EDGES, y=y, x=np.eye(6), edge_weight=weight)
    ids = {"train_idx": [0], "val_idx": [1], "test_idx": [2]}
    np.savez(folder / "bare.npz", edge_index=EDGES, y=y, **ids)
    many = np.array([[0, 1], [1, 1], [np.nan, 0], [1, 0], [0, 0], [1, 1]])
    np.savez(folder / "many.npz", edge_index=EDGES, y=many)
    x = sp.csr_array(np.eye(6, 9))
    parts = {f"x_{n}": getattr(x, n) for n in ("data", "indices", "indptr", "shape")}
    np.savez(folder / "sparse.npz", edge_index=EDGES, y=y, **parts)
    (folder / "text.csv").write_text("source,target,weight\n0,1,0.5\n1,2,2\n2,0,1\n")
    (folder / "text.labels.csv").write_text("0\n1\n0\n1\n")
    (folder / "m.mtx").write_text(
        "%%MatrixMarket matrix coordinate real general\n3 3 2\n2 1 0.5\n3 2 2\n"
    )
    (folder / "m.labels.csv").write_text("0\n1\n0\n")
    return {path.stem: path for path in folder.iterdir() if "labels" not in path.name}


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    assert (got.device, got.dtype, got.layout) == (want.device, want.dtype, want.layout)
    if got.layout == torch.sparse_csr:
        for part in ("crow_indices", "col_indices", "values"):
            same(getattr(got, part)(), getattr(want, part)())
    else:
        np.testing.assert_array_equal(got.numpy(), want.numpy())


def alike(got: maxk.Dataset, want: maxk.Dataset) -> None:
    for field in ("x", "y", "train_mask", "val_mask", "test_mask"):
        same(getattr(got, field), getattr(want, field))
    for part in ("indptr", "indices", "weight"):
        if getattr(want.graph, part) is not None:
            same(getattr(got.graph, part), getattr(want.graph, part))
    assert (got.notes, got.num_classes, got.metric) == (want.notes, want.num_classes, want.metric)


@pytest.mark.parametrize("name", ["w", "bare", "many", "sparse", "text", "m"])
@pytest.mark.parametrize("scaling", ["none", "row", "standard"])
def test_a_file_loads_as_without_them(
    tmp_path: Path, ambient: Callable[[], None], name: str, scaling: str
) -> None:
    path = files(tmp_path)[name]
    options = [{}, {"undirected": True}, {"self_loops": True}]
    wanted = [load(path, scaling=scaling, **more) for more in options]  # type: ignore[arg-type]
    ambient()
    for more, want in zip(options, wanted, strict=True):
        alike(load(path, scaling=scaling, **more), want)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["digits", "synthetic:nodes=60,degree=4,law=power", "synthetic"])
def test_a_name_loads_as_without_them(ambient: Callable[[], None], name: str) -> None:
    want = load(name)
    ambient()
    alike(load(name), want)


@pytest.mark.parametrize("law", ["lognormal", "power", "regular"])
def test_a_graph_is_drawn_as_without_them(ambient: Callable[[], None], law: str) -> None:
    config = SyntheticConfig(nodes=50, degree=4, law=law, order="community")  # type: ignore[arg-type]
    want = generate(config)
    x = node_features(config, want.communities)
    ambient()
    got = generate(config)
    same(got.edge_index, want.edge_index)
    same(got.communities, want.communities)
    same(node_features(config, got.communities), x)


def test_facts_are_the_same(tmp_path: Path, ambient: Callable[[], None]) -> None:
    paths = files(tmp_path)
    sources = ["digits", paths["w"], paths["many"], paths["sparse"]]
    wanted = [describe(source) for source in sources]
    ambient()
    for source, want in zip(sources, wanted, strict=True):
        assert describe(source) == want


def test_graph_files_are_written_and_read_as_without_them(
    tmp_path: Path, ambient: Callable[[], None]
) -> None:
    weight = torch.tensor([0.5, 2.0])
    graph = maxk.Graph.from_edge_index(torch.tensor([[0, 1], [1, 2]]), edge_weight=weight)
    empty = maxk.Graph.from_edge_index(torch.empty(2, 0, dtype=torch.int64), 2)
    ambient()
    for name in ("g.npz", "g.csv", "g.tsv.gz", "g.mtx"):
        for made in (graph, empty):
            save_graph(made, tmp_path / name)
            got = load_graph(tmp_path / name)
            same(got.indptr, made.indptr[: len(got.indptr)])
            same(got.indices, made.indices)
            if made.weight is not None:
                assert got.weight is not None
                same(got.weight, made.weight)


def test_scaling_follows_its_input(ambient: Callable[[], None]) -> None:
    x = torch.tensor([[1.0, -3.0], [0, 0], [2, 2]])
    want = [scale_features(x, scaling) for scaling in ("row", "standard")]
    ambient()
    for scaling, rows in zip(("row", "standard"), want, strict=True):
        same(scale_features(x, scaling), rows)  # type: ignore[arg-type]
