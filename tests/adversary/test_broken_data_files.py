"""Files that contradict each other or end early, noticed late or never."""

from __future__ import annotations

import re

import numpy as np
import pytest

from maxk.cli.main import main
from maxk.core.errors import DataError
from maxk.data.load import load


def test_counts_that_disagree_are_all_named(tmp_path):
    path = tmp_path / "g.npz"
    np.savez(path, edge_index=np.array([[0, 3], [1, 2]]), x=np.eye(3), y=np.zeros(4, np.int64))
    with pytest.raises(DataError, match=r"g\.npz.* x has 3 rows.* y has 4 rows.*reach id 3"):
        load(path)


def test_a_file_cut_short_is_refused_and_leaves_nothing(tmp_path, capsys):
    path = tmp_path / "g.npz"
    np.savez(path, edge_index=np.array([[0, 3], [1, 2]]), x=np.eye(4), y=np.zeros(4, np.int64))
    path.write_bytes(path.read_bytes()[:100])
    assert main(["train", "--dataset", str(path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("maxk: ")
    assert "Traceback" not in told
    assert "g.npz" in told
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("text", "message"), [
    ("source target\n0 1\n3 2\n\n", None),
    ("0 1\none 2\n", r"g\.txt:2: expected an integer node id in field 1, got 'one'"),
    ("1 2\n2 3\n3 4\n", r"g\.txt:3: target id 4 lies outside 0\.\.3.*look 1-based"),
    ("0 1\n0 -1\n", r"g\.txt:2: .*-1"),
], ids=["header", "word", "1-based", "negative"])  # fmt: skip
def test_the_first_bad_line_of_an_edge_list_is_named(tmp_path, text, message):
    path = tmp_path / "g.txt"
    path.write_text(text)
    np.save(tmp_path / "g.labels.npy", np.array([0, 1, 0, 1]))
    before = sorted(tmp_path.iterdir())
    if message is None:
        assert load(path).graph.edge_index().tolist() == [[0, 3], [1, 2]]
    else:
        with pytest.raises(DataError, match=message) as caught:
            load(path)
        assert not re.search("\n", str(caught.value))
    assert sorted(tmp_path.iterdir()) == before
