"""A header names the columns of a file, and the columns were taken by position all the same."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest

from maxk.cli.main import main
from maxk.core.errors import DataError
from maxk.data.load import load
from maxk.graph.files import load_graph, read_edge_list, read_table


def write(path: Path, text: str) -> Path:
    if path.suffix == ".gz":
        with gzip.open(path, "wt") as stream:
            stream.write(text)
    else:
        path.write_text(text)
    return path


EDGES = [[5, 7], [6, 8]]  # 5 -> 6 and 7 -> 8


@pytest.mark.parametrize(
    "text",
    [
        ",source,target\n0,5,6\n1,7,8\n",
        "target,source\n6,5\n8,7\n",
        "id,source,target\n0,5,6\n1,7,8\n",
        "source,id,target\n5,0,6\n7,1,8\n",
        '"","source","target"\n"1",5,6\n"2",7,8\n',
        '"source","target"\n"5","6"\n"7","8"\n',
        "Unnamed: 0;TO;From\n0;6;5\n1;8;7\n",
        "\tsource\ttarget\n0\t5\t6\n1\t7\t8\n",
        "dst\tsrc\n6\t5\n8\t7\n",
        "v u\n6 5\n8 7\n",
        "node2,node1\n6,5\n8,7\n",
        "Target Node\tSource Node\n6\t5\n8\t7\n",
        ",0,1\n0,5,6\n1,7,8\n",
        "\t0\t1\n0\t5\t6\n1\t7\t8\n",
        "# target source\n6 5\n8 7\n",
        "# made by a tool\n# ToNodeId\tFromNodeId\n6\t5\n8\t7\n",
        "# edges from source to target\n5 6\n7 8\n",
        "source,target,\n5,6,\n7,8,\n",
        "source,target\n5,6,\n7,8,\n",
        "5,6,\r\n7,8,\r\n",
        '\ufeff"target","source"\r\n6,5\r\n8,7\r\n',
    ],
)
@pytest.mark.parametrize("name", ["e.csv", "e.txt.gz"])
def test_edges_run_as_the_header_says(tmp_path: Path, text: str, name: str) -> None:
    edges = read_edge_list(write(tmp_path / name, text))
    assert edges.edge_index.tolist() == EDGES
    assert edges.weight is None


@pytest.mark.parametrize(
    "text",
    [
        "weight,source,target\n0.5,5,6\n2,7,8\n",
        "W;V;U\n0.5;6;5\n2;8;7\n",
        ",0,1,2\n0,5,6,0.5\n1,7,8,2\n",
        "edge_id\tedge_weight\tto\tfrom\n0\t0.5\t6\t5\n1\t2\t8\t7\n",
        "# weight source target\n0.5 5 6\n2 7 8\n",
        "source,target,weight,\n5,6,0.5,\n7,8,2,\n",
    ],
)
def test_weights_are_the_column_of_that_name(tmp_path: Path, text: str) -> None:
    edges = read_edge_list(write(tmp_path / "e.csv", text))
    assert edges.edge_index.tolist() == EDGES
    assert edges.weight is not None
    assert edges.weight.tolist() == [0.5, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source,target,timestamp\n5,6,1\n", ":1: the header names a column 'timestamp'"),
        ("\nsource,target,label\n5,6,1\n", ":2: the header names a column 'label'"),
        ("source target id time\n5 6 1 9\n", ":1: the header names a column 'time'"),
        ("# source target time\n5 6 1\n", ":1: the header names a column 'time'"),
        ("a b\n5 6\n", ":1: the header names a column 'a', but an edge list has a source (src"),
        ("row,col\n5,6\n", ":1: the header names a column 'row'"),
        ("head,tail\n5,6\n", ":1: the header names a column 'head'"),
        ("source,src\n5,6\n", ":1: the header names two source columns, 'source' and 'src'"),
        ("u,v,t\n5,6,9\n", ":1: the header names two target columns, 'v' and 't'"),
        ("source,weight\n5,6\n", ":1: the header ('source', 'weight') names no target column"),
        ("id,target\n5,6\n", ":1: the header ('id', 'target') names no source column"),
        ("source,target\n5,6,7\n", ":2: the header in line 1 names 2 columns ('source', 'target')"
                                   ", but this line has 3 fields; name each column once"),
        ("source target\n0 5 6\n", ":2: the header in line 1 names 2 columns"),
        ("source,target,weight\n5,6\n", ":2: the header in line 1 names 3 columns"),
        ("source,target,weight\n5,6,\n", ":2: expected a number in field 3, got ''"),
        ("id,source,target\n0,5,6\n1,7\n", ":3: expected 3 fields as in the first line, got 2"),
        ("id,source,target\n0,5,6\n1,x,8\n", ":3: expected an integer node id in field 2"),
        ("weight,source,target\n1,5,6\nnan,7,8\n", ":3: the weight must be a finite float32"),
        ("5,6,\n7,8,1\n", ":2: expected 2 fields as in the first line, got 3"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["e.csv", "e.txt.gz"])
def test_a_header_that_is_not_understood_is_refused_with_its_line(
    tmp_path: Path, text: str, message: str, name: str
) -> None:
    path = write(tmp_path / name, text)
    with pytest.raises(DataError, match=re.escape(f"{path}{message}")) as caught:
        load_graph(path)
    assert "\n" not in str(caught.value)


def test_column_numbers_that_may_be_a_header_are_pointed_out(tmp_path: Path) -> None:
    for text in ("0,1\n5,6\n", "0;1;2\n5;6;1\n"):
        (note,) = read_edge_list(write(tmp_path / "e.csv", text)).notes
        assert "e.csv:1: the line 0" in note
        assert "is read as an edge" in note
    assert read_edge_list(write(tmp_path / "e.txt", "0 1\n5 6\n")).notes == ()
    assert read_edge_list(write(tmp_path / "e.csv", "5,6\n0,1\n")).notes == ()


def test_describe_reads_the_names_and_tells_what_it_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "e.csv.gz", "id,target,source\n0,1,0\n1,2,0\n")
    assert main(["data", "describe", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["edges"], facts["weighted"], facts["out_degree_max"]) == (2, False, 2)
    assert facts["notes"] == [f"{path}: the column 'id' is not read"]
    write(path, "source,target,year\n0,1,1999\n")
    assert main(["data", "describe", str(path)]) == 2
    assert f"{path}:1: the header names a column 'year'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "id,a,b\n0,1,2\n1,3,4\n2,5,6\n",
        "a,b,Node_ID\n1,2,0\n3,4,1\n5,6,2\n",
        ",a,b\n0,1,2\n1,3,4\n2,5,6\n",
        ",0,1\n0,1,2\n1,3,4\n2,5,6\n",
        '"","a","b"\n"1",1,2\n"2",3,4\n"3",5,6\n',
        "\ta\tb\n0\t1\t2\n1\t3\t4\n2\t5\t6\n",
        "a,b\r\n1,2,\r\n3,4,\r\n5,6,\r\n",
    ],
)
@pytest.mark.parametrize("name", ["x.csv", "x.tsv.gz"])
def test_node_numbers_are_no_feature(tmp_path: Path, text: str, name: str) -> None:
    assert read_table(write(tmp_path / name, text)).tolist() == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,label\n0,1\n2,0\n1,1\n", ":3: the column 'id' numbers the nodes, so row 1 must hold 1"
                                      ", got 2; sort the rows by node id, with ids from 0"),
        ("id,label\n1,1\n2,0\n", ":2: the column 'id' numbers the nodes, so row 0 must hold 0"),
        ("a b\n1 2 3\n", ":2: the header in line 1 names 2 columns ('a', 'b'), but this line"),
    ],
)  # fmt: skip
def test_node_numbers_out_of_order_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "y.csv", text)
    with pytest.raises(DataError, match=re.escape(f"{path}{message}")):
        read_table(path)


def test_labels_with_node_numbers_are_single_labels(tmp_path: Path) -> None:
    """Of two nodes, ids and labels are all 0 and 1: as columns they would be two labels."""
    path = write(tmp_path / "g.csv", "source,target\n0,1\n1,2\n")
    write(tmp_path / "g.labels.csv", "node,label\n0,1\n1,0\n2,1\n")
    write(tmp_path / "g.features.csv", "id,height\n0,1.5\n1,2.5\n2,3.5\n")
    data = load(path)
    assert data.y.tolist() == [1, 0, 1]
    assert data.x.tolist() == [[1.5], [2.5], [3.5]]


def test_a_header_of_column_numbers_does_not_shift_the_nodes_in_silence(tmp_path: Path) -> None:
    path = write(tmp_path / "g.csv", "source,target\n0,1\n1,2\n")
    write(tmp_path / "g.labels.csv", "0\n1\n0\n1\n")
    assert any("g.labels.csv: the first row counts the columns" in n for n in load(path).notes)
    np.save(tmp_path / "g.features.npy", np.eye(3))
    with pytest.raises(DataError, match=r"the first row of .*labels\.csv may be a header"):
        load(path)
    (tmp_path / "g.features.npy").unlink()
    write(tmp_path / "g.features.csv", "0,1,2,3\n.5,1,2,3\n1,5,2,3\n2,1,5,3\n")
    assert any(re.search(r"features\.csv and .*the first row counts", n) for n in load(path).notes)
