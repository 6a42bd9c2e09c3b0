"""The eight public graphs, where a checkout of them lies beside the repository."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from maxk.data.describe import describe
from maxk.data.load import load

FOLDER = Path(__file__).parents[3] / "shared" / "data"

# name, nodes, undirected edges, loops, isolated, features, sparse, classes, metric, splits
GRAPHS = [
    ("tolokers", 11_758, 519_000, 0, 0, 10, False, 2, "roc_auc", 10),
    ("amazon_computers", 13_752, 245_861, 0, 281, 767, False, 10, "accuracy", 1),
    ("amazon_photo", 7_650, 119_081, 1, 115, 745, False, 8, "accuracy", 1),
    ("coauthor_physics", 34_493, 247_962, 0, 0, 8_415, True, 5, "accuracy", 1),
    ("coauthor_cs", 18_333, 81_894, 0, 0, 6_805, True, 15, "accuracy", 1),
    ("minesweeper", 10_000, 39_402, 0, 0, 7, False, 2, "roc_auc", 10),
    ("cora", 2_708, 5_278, 0, 0, 1_433, True, 7, "accuracy", 1),
    ("citeseer", 3_327, 4_552, 0, 48, 3_703, True, 6, "accuracy", 1),
]


@pytest.mark.skipif(not FOLDER.is_dir(), reason="the public graphs are not beside the repository")
@pytest.mark.parametrize("row", GRAPHS, ids=lambda row: row[0])
def test_published_counts(row: tuple[str, int, int, int, int, int, bool, int, str, int]) -> None:
    name, nodes, edges, loops, isolated, features, sparse, classes, metric, splits = row
    data = load(FOLDER / f"{name}.npz", undirected=True, split=splits - 1)
    facts = describe(data)
    assert facts.name == name
    assert (facts.nodes, facts.edges) == (nodes, 2 * edges + loops)
    assert (facts.self_loops, facts.duplicates, facts.isolated) == (loops, 0, isolated)
    assert facts.reciprocity == 1
    assert (facts.features, facts.classes, facts.metric) == (features, classes, metric)
    assert (data.x.layout == torch.sparse_csr) == sparse
    assert data.notes == ()
