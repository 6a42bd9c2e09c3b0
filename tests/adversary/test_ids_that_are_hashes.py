"""Node ids that are hashes or 64-bit identifiers ended in a sentence about gigabytes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from maxk.cli.main import main
from maxk.core.errors import DataError
from maxk.data.load import load
from maxk.graph.files import load_graph

HUGE = 9_000_000_000


@pytest.mark.parametrize("top", [HUGE, 2**63 - 1])
def test_huge_ids_of_an_edge_list_are_called_identifiers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], top: int
) -> None:
    path = tmp_path / "e.csv"
    path.write_text(f"source,target\n0,1\n1,{top}\n")
    message = (
        f"{path}: the largest node id is {top} with only 2 edges, so the ids look like hashes or "
        "64-bit identifiers; number the nodes from 0"
    )
    with pytest.raises(DataError, match=re.escape(message)):
        load_graph(path)
    assert main(["data", "describe", str(path)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_huge_ids_of_an_npz_are_called_identifiers(tmp_path: Path) -> None:
    path = tmp_path / "g.npz"
    np.savez(path, edge_index=np.array([[0, HUGE], [1, 0]]))
    with pytest.raises(DataError, match="look like hashes or 64-bit identifiers"):
        load_graph(path)
    np.savez(path, edge_index=np.array([[0, HUGE], [1, 0]]), y=np.array([0, 1, 0]))
    with pytest.raises(DataError, match=r"lies outside 0\.\.2 .*look like hashes or 64-bit ident"):
        load(path)
    np.savez(path, edge_index=np.array([[0, -HUGE], [1, 0]]), y=np.array([0, 1, 0]))
    with pytest.raises(DataError, match=r"lies outside 0\.\.2 .*look like hashes or 64-bit ident"):
        load(path)


def test_a_large_count_that_the_file_states_is_a_matter_of_memory(tmp_path: Path) -> None:
    path = tmp_path / "g.npz"
    np.savez(path, edge_index=np.array([[0], [1]]), num_nodes=np.int64(10**13))
    with pytest.raises(DataError, match="does not fit in memory: needs "):
        load_graph(path)


def test_the_renumbering_that_the_message_names_works(tmp_path: Path) -> None:
    ids = np.array([[0, HUGE], [17, 0]])
    _, numbered = np.unique(ids, return_inverse=True)
    path = tmp_path / "g.npz"
    np.savez(path, edge_index=numbered.reshape(ids.shape))
    assert load_graph(path).num_dst == 3
