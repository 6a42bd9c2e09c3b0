"""Small raw files in the format of each source: what its download would have put there."""

from __future__ import annotations

import gzip
import json
import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

# One direction of a small graph with a hub, in which no two nodes are alike.
PAIRS = [(0, 1), (0, 2), (0, 3), (1, 2), (3, 4), (4, 5), (5, 6), (2, 7), (6, 8), (7, 9)]
NODES = 10


def adjacency(*, both: bool = True) -> Any:
    source, target = np.array(PAIRS).T
    once = sp.coo_matrix((np.ones(len(PAIRS)), (source, target)), shape=(NODES, NODES)).tocsr()
    return once + once.T if both else once


def dense(columns: int = 4) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(NODES, columns)).astype(np.float32)


def bag(columns: int = 120) -> Any:
    """A bag of words: two of 120 columns a row."""
    rows = np.repeat(np.arange(NODES), 2)
    return sp.csr_matrix(
        (np.ones(2 * NODES), (rows, (np.arange(2 * NODES) * 7) % columns)), shape=(NODES, columns)
    )


def planetoid(folder: Path, name: str) -> None:
    """``ind.NAME.*``: the first 2 nodes train, the last 3 test; 500 validate in a real one."""
    folder.mkdir(parents=True)
    x = sp.csr_matrix(np.eye(512, 60, dtype=np.float32))
    y = np.eye(3, dtype=np.int32)[np.arange(512) % 3]
    graph = defaultdict(list)
    for node in range(515):
        graph[node] += [(node + 1) % 515]
        graph[(node + 1) % 515] += [node]
    graph[0] += [0, 1]  # a loop and a repeat, as the real files hold
    parts = {
        "x": x[:2], "y": y[:2], "allx": x, "ally": y, "graph": graph,
        "tx": sp.csr_matrix(np.eye(3, 60, dtype=np.float32)), "ty": np.eye(3, dtype=np.int32),
    }  # fmt: skip
    for part, value in parts.items():
        (folder / f"ind.{name}.{part}").write_bytes(pickle.dumps(value, protocol=2))
    (folder / f"ind.{name}.test.index").write_text("514\n512\n513\n")


def benchmark_npz(path: Path, features: Any) -> None:
    """Amazon, Coauthor, CitationFull: both matrices as CSR parts."""
    path.parent.mkdir(parents=True)
    graph = adjacency(both=False)
    np.savez(
        path,
        adj_data=graph.data, adj_indices=graph.indices, adj_indptr=graph.indptr,
        adj_shape=graph.shape, attr_data=features.data.astype(np.float32),
        attr_indices=features.indices, attr_indptr=features.indptr, attr_shape=features.shape,
        labels=np.arange(NODES) % 3,
    )  # fmt: skip


def saint(folder: Path, labels: list[Any]) -> None:
    """Flickr, Yelp, Reddit2, AmazonProducts: GraphSAINT's four files."""
    folder.mkdir(parents=True)
    graph = adjacency()
    np.savez(
        folder / "adj_full.npz",
        data=graph.data, indices=graph.indices, indptr=graph.indptr, shape=graph.shape,
    )  # fmt: skip
    np.save(folder / "feats.npy", dense().astype(np.float64))
    (folder / "class_map.json").write_text(json.dumps({str(i): v for i, v in enumerate(labels)}))
    roles = {"tr": [0, 1, 2, 3, 4, 5], "va": [6, 7], "te": [8, 9]}
    (folder / "role.json").write_text(json.dumps(roles))


def reddit(folder: Path) -> None:
    folder.mkdir(parents=True)
    np.savez(
        folder / "reddit_data.npz",
        feature=dense(), label=np.arange(NODES) % 3, node_types=np.repeat([1, 2, 3], [6, 2, 2]),
    )  # fmt: skip
    sp.save_npz(folder / "reddit_graph.npz", adjacency().tocoo())


def heterophilous(folder: Path, name: str) -> None:
    folder.mkdir(parents=True)
    masks = np.zeros((3, 10, NODES), dtype=bool)
    for split in range(10):
        order = np.random.default_rng(split).permutation(NODES)
        for part, nodes in enumerate(np.split(order, [5, 7])):
            masks[part, split, nodes] = True
    np.savez(
        folder / f"{name}.npz",
        node_features=dense(), node_labels=np.arange(NODES) % 2, edges=np.array(PAIRS),
        train_masks=masks[0], val_masks=masks[1], test_masks=masks[2],
    )  # fmt: skip


def wikics(folder: Path) -> None:
    folder.mkdir(parents=True)
    train = [[node % 4 == split for node in range(NODES)] for split in range(2)]
    val = [[node % 4 == split + 2 for node in range(NODES)] for split in range(2)]
    links: list[list[int]] = [[] for _ in range(NODES)]
    for source, target in PAIRS:
        links[source].append(target)
    (folder / "data.json").write_text(json.dumps({
        "features": dense().tolist(), "labels": (np.arange(NODES) % 3).tolist(), "links": links,
        "train_masks": train, "val_masks": val, "stopping_masks": val,
        "test_mask": [node >= 8 for node in range(NODES)],
    }))  # fmt: skip


def actor(folder: Path) -> None:
    folder.mkdir(parents=True)
    words = [f"{node}\t{node},{(node + 3) % NODES}\t{node % 5}" for node in range(NODES)]
    (folder / "out1_node_feature_label.txt").write_text("\n".join(["head", *words, ""]))
    edges = [f"{source}\t{target}" for source, target in PAIRS]
    (folder / "out1_graph_edges.txt").write_text("\n".join(["head", *edges, ""]))
    for split in range(10):
        part = (np.arange(NODES) + split) % 3
        np.savez(
            folder / f"film_split_0.6_0.2_{split}.npz",
            train_mask=part == 0, val_mask=part == 1, test_mask=part == 2,
        )  # fmt: skip


def ppi(folder: Path) -> None:
    """Two training graphs and one each for validation and test, numbered through."""
    folder.mkdir(parents=True)
    for offset, (split, count) in enumerate([("train", 2), ("valid", 1), ("test", 1)]):
        nodes = count * NODES
        np.save(folder / f"{split}_feats.npy", np.tile(dense(), (count, 1)) + offset)
        np.save(folder / f"{split}_labels.npy", np.arange(nodes * 3).reshape(nodes, 3) % 2)
        np.save(folder / f"{split}_graph_id.npy", np.repeat(np.arange(count), NODES) + 1)
        links = [
            {"source": source + graph * NODES, "target": target + graph * NODES}
            for graph in range(count)
            for source, target in PAIRS
        ]
        text = {"directed": True, "multigraph": False, "graph": {}, "links": links,
                "nodes": [{"id": node} for node in range(nodes)]}  # fmt: skip
        (folder / f"{split}_graph.json").write_text(json.dumps(text))


def ogb(folder: Path, split: str, labels: np.ndarray, *, edge_features: bool = False) -> None:
    """A folder as OGB's archives unpack: raw tables without a head, the split, the release."""
    (folder / "raw").mkdir(parents=True)
    (folder / "split" / split).mkdir(parents=True)
    (folder / "RELEASE_v1.txt").write_text("# Release note\n")
    raw: dict[str, np.ndarray] = {
        "edge": np.array(PAIRS), "node-label": labels, "num-node-list": np.array([[NODES]]),
        "num-edge-list": np.array([[len(PAIRS)]]), "node_year": np.full((NODES, 1), 2017),
    }  # fmt: skip
    if edge_features:
        raw["edge-feat"] = np.arange(len(PAIRS) * 8).reshape(-1, 8) / 16
        raw["species"] = np.full((NODES, 1), 3702)
        del raw["node_year"]
    else:
        raw["node-feat"] = dense()
    for name, values in raw.items():
        table(folder / "raw" / f"{name}.csv.gz", values)
    for name, ids in (("train", [0, 1, 2, 3, 4, 5]), ("valid", [6, 7]), ("test", [8, 9])):
        table(folder / "split" / split / f"{name}.csv.gz", np.array(ids)[:, None])


def table(path: Path, values: np.ndarray) -> None:
    rows = "".join(",".join(map(str, row)) + "\n" for row in values.tolist())
    with gzip.open(path, "wt") as file:
        file.write(rows)
