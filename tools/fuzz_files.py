"""What tools/fuzz.py feeds to the loaders: valid files, ways to break them, and hostile ones."""

from __future__ import annotations

import gzip
import io
import json
import random
import zipfile
from typing import Any

import numpy as np

NOISE = 10_000_000

NUMBERS = [
    b"-1", b"0", b"1", b"4", b"255", b"2147483648", b"9223372036854775807", b"9" * 30, b"9" * 5000,
    b"nan", b"inf", b"-inf", b"1e400", b"1e-400", b"0x10", b"1_0", b"1.5", b"", b"word", b"\xff",
    b"\0", "٣".encode(), b"#", b"%", b",", b"\n", b"\r\n", b" ", b"\t", b"[" * 2000, b'"', b"'",
]  # fmt: skip


def dataset_arrays() -> dict[str, Any]:
    """A small data set as the arrays of an archive."""
    part = np.arange(12) % 3
    return {
        "edge_index": np.array([np.arange(12), (np.arange(12) + 1) % 12]),
        "x": np.linspace(-1, 1, 60, dtype=np.float32).reshape(12, 5),
        "y": np.arange(12) % 4,
        "train_mask": part == 0, "val_mask": part == 1, "test_mask": part == 2,
        "num_nodes": np.int64(12), "num_classes": np.int64(4),
        "meta": np.array(json.dumps({"name": "small", "metric": "accuracy", "directed": False})),
    }  # fmt: skip


def sparse_arrays() -> dict[str, Any]:
    """The same with sparse features, CSR edges and weights."""
    arrays = dataset_arrays()
    for name in ("x", "edge_index", "num_nodes"):
        del arrays[name]
    return {
        **arrays,
        "indptr": np.arange(13), "indices": np.arange(12), "weight": np.ones(12, np.float32),
        "num_src": np.int64(12), "x_data": np.ones(12, np.float32), "x_indices": np.arange(12) % 5,
        "x_indptr": np.arange(13), "x_shape": np.array([12, 5]),
    }  # fmt: skip


def archive(arrays: dict[str, Any], *, packed: bool = False) -> bytes:
    """The bytes of an ``.npz`` of any arrays, objects included."""
    buffer = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(buffer, allow_pickle=True, **arrays)
    return buffer.getvalue()


def array_file(array: Any) -> bytes:
    """The bytes of an ``.npy``."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


EDGES = b"source,target,weight\n0,1,0.5\n1,2,1\n\n# comment\n2,0,1e-3\n3,4,7\n"
PAIRS = b"% konect\n0 1\n1 2\n2 0\n3 4\n4 4\n"
MATRIX = (
    b"%%MatrixMarket matrix coordinate real general\n% c\n5 5 4\n1 2 0.5\n2 3 1\n5 5 2\n4 1 1\n"
)
SYMMETRIC = b"%%MatrixMarket matrix coordinate pattern symmetric\n5 5 3\n2 1\n3 2\n5 5\n"


def header(draw: random.Random) -> bytes:
    """An array file whose header misleads."""
    shape = draw.choice([
        "(2, 10000000000)", "(-1,)", "(-2, -3)", f"(0, {10**30})", "(True, 2)", "(2.5,)", "()",
        f"({2**62}, 4)", "2", "((1,), 2)", "(" * 300, "(1,)" * 200, "{}", "None",
    ])  # fmt: skip
    kind = draw.choice([
        "'<i8'", "'|O'", "'<U1000000000'", "'<f8\\0'", "[('a', '<i8')]", "[('a', '|O')]",
        "('<i8', (3,))",
        "'<M8[ns]'", "'V0'", "'|S0'", "17", "None", "{'names': ['a'], 'formats': ['i8']}", "'<c16'",
    ])  # fmt: skip
    order = draw.choice(["False", "True", "0"])
    text = f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}, }}"
    raw = mutated(draw, text.encode()) if draw.random() < 0.3 else text.encode()
    version = draw.choice([b"\1\0", b"\2\0", b"\3\0", b"\7\0"])
    length = draw.choice([len(raw), len(raw), len(raw), 0, 65535, len(raw) // 2])
    size = length.to_bytes(2 if version == b"\1\0" else 4, "little")
    return b"\x93NUMPY" + version + size + raw + draw.randbytes(draw.choice([0, 8, 16, 64]))


def zipped(draw: random.Random) -> bytes:
    """An archive that misleads: names, doubles, bombs, foreign members, other compressions."""
    buffer = io.BytesIO()
    method = draw.choice(
        [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
    )
    with zipfile.ZipFile(buffer, "w", method) as file:
        names = [
            "edge_index.npy",
            "../../climbs.npy",
            "/etc/up.npy",
            "a\0b.npy",
            "x.npy",
            "\n.npy",
            ".npy",
        ]
        for _ in range(draw.randint(1, 4)):
            name = draw.choice(names)
            content = draw.choice([
                lambda: array_file(np.array([[0, 1], [1, 2]])), lambda: header(draw),
                lambda: array_file(np.zeros(draw.choice([1 << 20, 1 << 24, 1 << 28]), np.uint8)),
                lambda: draw.randbytes(100), lambda: b"",
            ])()  # fmt: skip
            file.writestr(name, content)
    data = buffer.getvalue()
    return mutated(draw, data) if draw.random() < 0.3 else data


def other_arrays(draw: random.Random) -> bytes:
    """A data set with one or two arrays of another shape, dtype or value."""
    arrays = draw.choice([dataset_arrays, sparse_arrays])()
    for name in draw.sample(sorted(arrays), draw.randint(1, 2)):
        array = np.array(arrays[name])
        change = draw.randrange(8)
        if change == 0:
            del arrays[name]
            continue
        if change == 1:
            kinds = "i1 u8 f2 f4 f8 f16 c8 c16 U5 S5 O M8[s] m8[s] V3 ?".split()  # noqa: SIM905
            try:
                array = array.astype(draw.choice(kinds))
            except (TypeError, ValueError):
                array = np.array([None])
        elif change == 2 and array.size:
            flat = array.reshape(-1).copy()
            number = draw.choice([-1, 12, 2**31, -(2**31), 2**62, -(2**63), 255, 0])
            flat[draw.randrange(flat.size)] = np.array(number).astype(array.dtype)
            array = flat.reshape(array.shape)
        elif change == 3:
            array = array[: draw.randrange(3)] if array.ndim else np.array([array, array])
        elif change == 4:
            array = np.stack([array] * draw.randint(1, 3), axis=draw.randint(0, array.ndim))
        elif change == 5:
            shape = [draw.choice([0, 1, 2, 12, 13]) for _ in range(draw.randint(0, 4))]
            array = np.zeros(shape, array.dtype)
        elif change == 6 and array.dtype.kind == "f":
            array = np.full_like(array, draw.choice([np.nan, np.inf, 1e38, -0.0, 1e-45]))
        else:
            array = array.T.astype(array.dtype.newbyteorder(">"))
        arrays[name] = array
    return archive(arrays, packed=draw.random() < 0.5)


def mutated(draw: random.Random, data: bytes) -> bytes:
    """A file with some of its bytes changed."""
    raw = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 3, 8, 40])):
        if not raw:
            return bytes(raw)
        at = draw.randrange(len(raw))
        change = draw.randrange(7)
        if change == 0:
            raw[at] ^= 1 << draw.randrange(8)
        elif change == 1:
            raw[at] = draw.randrange(256)
        elif change == 2:
            del raw[at:]
        elif change == 3:
            end = min(len(raw), at + draw.choice([1, 4, 64, 1000]))
            del raw[at:end]
        elif change == 4:
            end = min(len(raw), at + draw.choice([1, 8, 100]))
            raw[at:at] = raw[at:end] * draw.choice([1, 2, 50])
        elif change == 5:
            raw[at : at + draw.choice([0, 1, 2, 8])] = draw.choice(NUMBERS)
        else:
            raw[at : at + 8] = draw.choice(
                [bytes(8), b"\xff" * 8, (2**63 - 1).to_bytes(8, "little")]
            )
    return bytes(raw)


def noise(draw: random.Random) -> bytes:
    """Random bytes or random text; now and then 10 MB."""
    size = draw.choice([0, 1, 10, 1000, 100_000]) if draw.random() < 0.97 else NOISE
    if draw.random() < 0.5:
        return draw.randbytes(size)
    letters = b"0123456789 \t\n,;#%.-+eE[]{}\"'=nai"
    return bytes(draw.choices(letters, k=min(size, 200_000))) * max(1, size // 200_000)


def text_bomb(draw: random.Random) -> bytes:
    """Text that unpacks to a thousand times its size: one line, or many."""
    line = draw.choice([b"0" * 1000, b"0 1\n" * 250, b"\n" * 1000, b"# " * 500])
    return gzip.compress(line * draw.choice([100, 3000]), 9)
