from __future__ import annotations

import gzip
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from maxk.core.errors import DataError
from maxk.data import load as load_module
from maxk.graph.files import (
    edges,
    kinds,
    line_of,
    load_graph,
    read_edge_list,
    read_npy,
    read_npz,
    read_table,
    save_graph,
    text,
)
from maxk.graph.graph import Graph

EVERY_KIND = ["g.npz", "g.txt", "g.csv", "g.tsv", "g.mtx", "g.txt.gz", "g.CSV", "g.mtx.gz"]


def write(path: Path, text: str) -> Path:
    if path.suffix == ".gz":
        with gzip.open(path, "wt") as stream:
            stream.write(text)
    else:
        path.write_text(text)
    return path


def refused(path: Path, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(f"{path}{message}")):
        load_graph(path)


def same(a: Graph, b: Graph) -> bool:
    """Equal up to the order of edges inside a row."""

    def key(graph: Graph) -> list[tuple[float, ...]]:
        weight = torch.ones(graph.num_edges) if graph.weight is None else graph.weight
        source, target = graph.edge_index()
        return sorted(zip(target.tolist(), source.tolist(), weight.tolist(), strict=True))

    sizes = (a.num_src, a.num_dst) == (b.num_src, b.num_dst)
    return sizes and (a.weight is None) == (b.weight is None) and key(a) == key(b)


@pytest.mark.parametrize("name", EVERY_KIND)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_graph_survives_every_kind_of_file(tmp_path: Path, name: str, weighted: bool) -> None:
    # Directed, unsorted, with a loop; the last node has an edge, so edge lists keep the count.
    edge_index = torch.tensor([[2, 0, 1, 3, 1], [0, 1, 0, 3, 3]])
    weight = torch.tensor([10.0, 1 / 3, 100.0, -2.5e-7, 0.0]) if weighted else None
    graph = Graph.from_edge_index(edge_index, edge_weight=weight)
    save_graph(graph, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert same(load_graph(tmp_path / name), graph)


@pytest.mark.parametrize("name", ["g.npz", "g.mtx"])
def test_a_bipartite_graph_keeps_both_counts(tmp_path: Path, name: str) -> None:
    graph = Graph.from_edge_index(torch.tensor([[0, 1], [4, 1]]), (3, 6))
    save_graph(graph, str(tmp_path / name))
    assert same(load_graph(str(tmp_path / name)), graph)


@pytest.mark.parametrize("name", EVERY_KIND)
def test_a_graph_without_edges_survives(tmp_path: Path, name: str) -> None:
    graph = Graph.from_edge_index(torch.empty(2, 0, dtype=torch.int64), 4)
    save_graph(graph, tmp_path / name)
    expected = 4 if name.startswith(("g.npz", "g.mtx")) else 0
    loaded = load_graph(tmp_path / name)
    assert (loaded.num_dst, loaded.num_edges) == (expected, 0)


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    graph = Graph.from_edge_index(torch.tensor([[0], [1]]))
    with pytest.raises(DataError, match="unknown kind of graph file"):
        save_graph(graph, tmp_path / "g.parquet")
    with pytest.raises(DataError, match=r"missing/g\.npz: cannot be written"):
        save_graph(graph, tmp_path / "missing" / "g.npz")
    (tmp_path / "g.txt").mkdir()
    with pytest.raises(DataError, match=r"g\.txt: cannot be written"):
        save_graph(graph, tmp_path / "g.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["g.txt"]


@pytest.mark.parametrize(
    "text",
    [
        "0 1\n2 0\n",
        "source target\n0 1\n2 0\n\n",
        "# from a tool\n\n0\t1\n  \n2 \t 0  # the second\n",
        "% konect\nsource,target\n0,1\n 2 , 0",
        "0;1\r\n2;0\r\n",
        "\ufeff0 1\n2 0\n",
    ],
)
@pytest.mark.parametrize("name", ["e.txt", "e.csv.gz"])
def test_edge_lists_may_have_headers_comments_and_blank_lines(
    tmp_path: Path, text: str, name: str
) -> None:
    edges = read_edge_list(write(tmp_path / name, text))
    assert edges.edge_index.tolist() == [[0, 2], [1, 0]]
    assert edges.weight is None


def test_a_third_column_is_the_weight(tmp_path: Path) -> None:
    edges = read_edge_list(write(tmp_path / "e.csv", "s,t,w\n0,1,0.5\n2,0,1e-3\n"))
    assert edges.edge_index.tolist() == [[0, 2], [1, 0]]
    assert edges.weight is not None
    assert edges.weight.dtype == torch.float32
    assert edges.weight.tolist() == pytest.approx([0.5, 1e-3])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1\nfoo 2\n", ":2: expected an integer node id in field 1, got 'foo'"),
        ("from to\n\n0 1\n# c\n1 x\n", ":5: expected an integer node id in field 2, got 'x'"),
        ("0 1\n1.0 2\n", ":2: expected an integer node id in field 1, got '1.0'"),
        ("0 1\n1 2 3\n", ":2: expected 2 fields as in the first line, got 3"),
        ("0 1 1\n1 2\n", ":2: expected 3 fields as in the first line, got 2"),
        ("0\n1\n", ":1: an edge has 2 or 3 fields (source, target, weight), got 1"),
        ("0 1 2 3\n", ":1: an edge has 2 or 3 fields (source, target, weight), got 4"),
        ("0 1\n0 99999999999999999999\n", ":2: the node id in field 2 does not fit 64 bits"),
        (
            f"0 1\n0 {2**63}\n",
            ":2: the node id in field 2 does not fit 64 bits: 9223372036854775808",
        ),
        (f"0 1\n-{2**63 + 1} 0\n", ":2: the node id in field 1 does not fit 64 bits"),
        (f"0 1\n0 {'9' * 5000}\n", ":2: the node id in field 2 does not fit 64 bits: 9999"),
        (f"0 1\n0{'0' * 5000}1 x\n", ":2: expected an integer node id in field 2, got 'x'"),
        ("0 1 1\n0 1 much\n", ":2: expected a number in field 3, got 'much'"),
        ("0 1 1\n0 1 nan\n", ":2: the weight must be a finite float32 number, got nan"),
        ("0 1\n-1 0\n", ": edge_index[0] holds the source id -1 at position 1"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    refused(write(tmp_path / "e.txt", text), message)
    refused(write(tmp_path / "e.txt.gz", text), message)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.txt"
    path.write_bytes(b"0 1\n\xff\xfe 2\n")
    refused(path, ": not a text file (invalid start byte at byte 4)")
    packed = write(tmp_path / "e.txt.gz", "0 1\n" * 10_000)
    packed.write_bytes(packed.read_bytes()[:-20])
    refused(packed, ": cut short or damaged")
    packed.write_bytes(b"0 1\n")
    refused(packed, ": cut short or damaged")
    refused(tmp_path / "absent.txt", ": no such file")
    (tmp_path / "d.csv").mkdir()
    refused(tmp_path / "d.csv", ": is a folder, not a file")


def test_tables_of_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "a,b\n1,nan\n2.5,-3\n")
    np.testing.assert_array_equal(read_table(path), [[1, np.nan], [2.5, -3]])
    path = write(tmp_path / "x.csv", "1,2\n3\n")
    with pytest.raises(DataError, match=re.escape(f"{path}:2: expected 2 fields")):
        read_table(path)
    path = write(tmp_path / "x.csv", "1,2\n3,red\n")
    with pytest.raises(DataError, match=re.escape(f"{path}:2: expected a number in field 2")):
        read_table(path)


def test_line_of_counts_what_is_skipped(tmp_path: Path) -> None:
    path = write(tmp_path / "e.txt", "# c\nfrom to\n0 1\n\n# c\n1 2\n")
    assert [line_of(path, row) for row in (0, 1)] == [3, 6]


def test_matrix_market_rows_are_targets(tmp_path: Path) -> None:
    banner = "%%MatrixMarket matrix coordinate"
    path = write(tmp_path / "a.mtx", f"{banner} real general\n% c\n2 3 2\n1 3 0.5\n2 1 2\n")
    graph = load_graph(path)
    assert (graph.num_dst, graph.num_src) == (2, 3)
    assert graph.edge_index().tolist() == [[2, 0], [0, 1]]
    assert graph.weight is not None
    assert graph.weight.tolist() == [0.5, 2]
    path = write(tmp_path / "b.mtx", f"{banner} pattern symmetric\n3 3 2\n2 1\n3 3\n")
    graph = load_graph(path)
    assert graph.weight is None
    assert sorted(zip(*graph.edge_index().tolist(), strict=True)) == [(0, 1), (1, 0), (2, 2)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", ":1: Not a Matrix Market file"),
        ("%%MatrixMarket matrix coordinate pattern general\n3 3 2\n1 2\n4 1\n", ":4: Row index"),
        ("%%MatrixMarket matrix coordinate pattern general\n3 3 2\n1 2\n", ": Truncated file"),
        ("%%MatrixMarket matrix array real general\n1 1\n1\n", ": a graph is a coordinate matrix"),
        ("%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 nan\n", ": entry must be"),
        (
            f"%%MatrixMarket matrix coordinate pattern general\n3 3 {10**16}\n1 2\n",
            f": declares {10**16} ",
        ),
        (
            "%%MatrixMarket matrix coordinate pattern general\n3 3 2\n1 2\n3 1 \0\n",
            ": holds a null",
        ),
        ("%%MatrixMarket matrix coordinate pattern general\n3 3 2\n1 2\n3", ":4: Invalid integer"),
        ("%%MatrixMarket matrix coordinate pattern general\n3 3 -2\n1 2\n", ":2: Matrix NNZ"),
        (
            f"%%MatrixMarket matrix coordinate pattern general\n{10**13} {10**13} 1\n1 2\n",
            f": a graph of {10**13} x {10**13} nodes does not fit in memory: needs ",
        ),
    ],
)
def test_a_broken_matrix_market_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    refused(write(tmp_path / "m.mtx", text), message)


def test_a_last_line_without_an_end_is_read_and_no_further(tmp_path: Path) -> None:
    banner = "%%MatrixMarket matrix coordinate pattern symmetric"
    for last in ("2 2", "2 2w"):
        path = write(tmp_path / "m.mtx", f"{banner}\n2 2 2\n2 1\n{last}")
        assert sorted(load_graph(path).edge_index().t().tolist()) == [[0, 1], [1, 0], [1, 1]]


def test_npz_takes_int32_int64_and_unsigned_ids(tmp_path: Path) -> None:
    for dtype in (np.int32, np.int64, np.uint16, ">i4"):
        np.savez(tmp_path / "g.npz", edge_index=np.array([[2, 0, 1], [0, 1, 0]], dtype))
        graph = load_graph(tmp_path / "g.npz")
        assert graph.edge_index().tolist() == [[2, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"edge_index": np.zeros((2, 1))}, "edge_index must hold integers, got float64"),
        (
            {"edge_index": np.zeros((5, 2), int)},
            "edge_index must have shape [2, E], got [5, 2]; transpose it",
        ),
        ({"edges": np.zeros(1)}, "holds no edges: needs edge_index, or indptr and indices; its "),
        (
            {"edge_index": np.zeros((2, 3), int), "edge_weight": np.ones(2)},
            "edge_weight must hold 3 numbers, one per edge, got float64 [2]",
        ),
        (
            {"edge_index": np.zeros((2, 2), int), "edge_weight": np.array([1, np.inf])},
            "edge_weight must be finite, got inf at position 1",
        ),
        (
            {"edge_index": np.array([[3], [0]]), "num_nodes": np.int64(3)},
            "edge_index[0] holds the source id 3 at position 0",
        ),
        (
            {"edge_index": np.zeros((2, 1), int), "num_nodes": np.int64(-3)},
            "num_nodes must be one integer >= 0, got int64 [] with the value -3",
        ),
        (
            {"indptr": np.array([0, 2, 1]), "indices": np.zeros(1, int)},
            "indptr must rise from 0 to the number of entries (1), got 0 to 1 and a fall at row 1",
        ),
    ],
)
def test_npz_arrays_that_make_no_graph(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    np.savez(tmp_path / "g.npz", **arrays)
    refused(tmp_path / "g.npz", f": {message}")


def test_npz_is_never_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", edge_index=np.array([{"a": 1}], dtype=object))
    refused(tmp_path / "g.npz", ": array 'edge_index' holds pickled Python objects")
    np.save(tmp_path / "x.npy", np.array([None], dtype=object))
    with pytest.raises(DataError, match=r"x\.npy: array holds pickled Python objects"):
        read_npy(tmp_path / "x.npy")


def test_a_cut_or_damaged_npz_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "g.npz"
    np.savez(path, edge_index=np.arange(2000).reshape(2, -1) % 7)
    whole = path.read_bytes()
    for size in (0, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        refused(path, f": not a whole .npz archive: cut short or damaged ({size} bytes")
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    path.write_bytes(flipped)
    refused(path, ": array 'edge_index.npy': cut short or damaged")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("edge_index.npy", b"no array")
    refused(path, ": array 'edge_index.npy': cut short or damaged")


def test_a_declared_size_is_not_trusted(tmp_path: Path) -> None:
    header = {"descr": "<i8", "fortran_order": False, "shape": (2, 10**13)}
    with (
        zipfile.ZipFile(tmp_path / "g.npz", "w") as archive,
        archive.open("edge_index.npy", "w") as stream,
    ):
        np.lib.format.write_array_header_1_0(stream, header)
        stream.write(bytes(32))
    refused(
        tmp_path / "g.npz",
        f": array 'edge_index' declares shape [2, {10**13}] of int64 ({16 * 10**13} bytes), "
        "but holds 32 bytes",
    )
    with (tmp_path / "x.npy").open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
    with pytest.raises(DataError, match="but holds 0 bytes"):
        read_npy(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.ones(3))
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:60])
    with pytest.raises(DataError, match=r"x\.npy: cut short or damaged"):
        read_npy(tmp_path / "x.npy")


def raw_npy(header: bytes, data: bytes = b"") -> bytes:
    """An array file of format 1.0 with any header."""
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


HEADERS = {
    "null bytes": b"{'descr': '<i8', \0\0\0}",
    "no dictionary": b"[1, 2]",
    "half a dictionary": b"{'descr': '<i8', 'fortran_order': False, 'sha",
    "an open string": b"{'descr': '<i8, 'fortran_order': False, 'shape': (2,)}",
    "an open triple string": b'{\'descr\': """<i8',
    "indented": b"  {'descr'\n :: \n\t'<i8'",
    "a backslash": b"{'descr': \\ '<i8'}",
    "a call": b"__import__('os').system('true')",
    "deep": b"(" * 4000,
    "a dtype that is none": b"{'descr': '<q9', 'fortran_order': False, 'shape': (2,)}",
    "a dtype of numbers": b"{'descr': [(1, 2, 3, 4)], 'fortran_order': False, 'shape': (2,)}",
    "no text": bytes(range(128, 192)),
    "a number that is too long": b"{'descr': '<i8', 'fortran_order': 0, 'shape': (" + b"9" * 5000,
    "nothing": b"",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_a_header_that_cannot_be_read_is_refused(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "x.npy").write_bytes(raw_npy(header, bytes(16)))
    with pytest.raises(DataError, match=r"x\.npy: cut short or damaged \(header: "):
        read_npy(tmp_path / "x.npy")
    with zipfile.ZipFile(tmp_path / "g.npz", "w") as archive:
        archive.writestr("edge_index.npy", raw_npy(header, bytes(16)))
    refused(tmp_path / "g.npz", ": array 'edge_index.npy': cut short or damaged (")


@pytest.mark.parametrize(
    "shape", ["(-2, -1)", "(-1,)", f"(0, {10**30})", f"(2, {2**63})", "(True, 2)"]
)
def test_a_shape_that_no_array_has_is_refused(tmp_path: Path, shape: str) -> None:
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    (tmp_path / "x.npy").write_bytes(raw_npy(header, bytes(16)))
    with pytest.raises(DataError, match=re.escape(str(tmp_path / "x.npy"))):
        read_npy(tmp_path / "x.npy")


def test_bytes_behind_an_array_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.ones(3))
    path.write_bytes(path.read_bytes() + bytes(8))
    with pytest.raises(DataError, match=r"declares shape \[3\] .* but holds 32 bytes"):
        read_npy(path)


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edges, "host_memory", lambda: 1 << 20)
    np.savez_compressed(tmp_path / "g.npz", edge_index=np.zeros((2, 1 << 17), np.int64))
    assert (tmp_path / "g.npz").stat().st_size < 1 << 14
    refused(tmp_path / "g.npz", ": what it unpacks to does not fit in memory: needs 0.00195 GiB")
    np.savez_compressed(tmp_path / "g.npz", edge_index=np.zeros((2, 1 << 17), np.uint8))
    refused(tmp_path / "g.npz", ": edge_index as 64-bit ids does not fit in memory: needs 0.00195")
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0], [0]]), num_nodes=10**9)
    refused(tmp_path / "g.npz", f": a graph of {10**9} x {10**9} nodes does not fit in memory")
    refused(
        write(tmp_path / "e.txt", f"0 {10**9}\n"),
        f": the largest node id is {10**9} with only 1 edges",
    )


@pytest.mark.parametrize("error", [
    MemoryError("Unable to allocate"), RuntimeError("DefaultCPUAllocator: not enough memory"),
    RuntimeError("Storage size calculation overflowed"),
], ids=["numpy", "torch", "overflow"])  # fmt: skip
def test_memory_that_cannot_be_had_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    np.savez(tmp_path / "g.npz", edge_index=np.zeros((2, 4), np.uint8), y=np.zeros(1, np.int64))

    def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr(kinds, "npz_edges", failing)
    refused(tmp_path / "g.npz", ": what it holds does not fit in memory")
    monkeypatch.setattr(load_module, "check_labels", failing)
    with pytest.raises(DataError, match=r"g\.npz: what is made of it does not fit in"):
        load_module.load(tmp_path / "g.npz")
    monkeypatch.setattr(kinds, "npz_edges", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        load_graph(tmp_path / "g.npz")


def test_a_bomb_of_text_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "LONGEST_LINE", 1000)
    refused(write(tmp_path / "e.txt.gz", "0" * 10_000), ":1: a line of 1000 characters and more")
    refused(write(tmp_path / "e.txt", "0 1\n" + " " * 1000), ":2: a line of 1000 characters")
    monkeypatch.setattr(text, "ROOM_LINES", 100)
    monkeypatch.setattr(edges, "host_memory", lambda: 100 * 16 - 1)
    packed = write(tmp_path / "f.txt.gz", "0 1\n" * 150)
    refused(packed, ": a file of more than 100 lines does not fit in memory")
    monkeypatch.setattr(edges, "host_memory", lambda: None)
    assert load_graph(packed).num_edges == 150


def test_names_in_an_archive_lead_nowhere(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    arrays = {"edge_index": np.array([[0], [1]]), "../../climbs": np.ones(1), "/etc/up": np.ones(1)}
    np.savez(inner / "g.npz", **arrays)
    assert load_graph(inner / "g.npz").num_edges == 1
    assert [p.name for p in tmp_path.rglob("*")] == ["inner", "g.npz"]
    with pytest.warns(UserWarning), zipfile.ZipFile(inner / "g.npz", "a") as archive:
        archive.writestr("edge_index.npy", b"")
    refused(inner / "g.npz", ": holds two arrays called 'edge_index'")


def test_ids_above_64_bits_are_not_wrapped(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", edge_index=np.array([[2**63], [0]], np.uint64))
    refused(tmp_path / "g.npz", f": edge_index holds {2**63}, which does not fit 64 bits")


def test_read_npz_gives_arrays_that_may_be_written(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "g.npz", a=np.arange(3), b="text")
    arrays = read_npz(tmp_path / "g.npz")
    arrays["a"][0] = 5
    assert arrays["a"].tolist() == [5, 1, 2]
    assert str(arrays["b"]) == "text"
