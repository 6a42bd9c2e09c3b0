"""Feeds every loader with broken and hostile files: anything but success or a typed error is found.

    python tools/fuzz.py --minutes 10

Inputs are valid files with bytes changed, cut, repeated or exchanged, arrays of other shapes,
dtypes and values, headers and archives made to mislead (huge shapes, negative offsets, bombs, names
that climb out of the folder), and plain noise of up to 10 MB. They are read in batches, each in a
child process with an address space that is limited and a time limit; a crash, a hang, another
exception than MaxKError, or a file left in another place is a finding, whose input is kept in
--keep. The figures go to results/reliability/fuzz.json.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from maxk.core.errors import MaxKError
from maxk.data.load import load
from maxk.graph.files import load_graph, read_npy, read_table
from maxk.measure import record
from maxk.train import checkpoint
from maxk.train import run as runs
from maxk.train.config import TrainConfig
from maxk.train.folder import resumed_config
from maxk.train.loop import Trainer

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "reliability"

BATCH = 40
#: Bytes that a child may take beyond what the imports took.
MEMORY = 2 << 30
#: For one input, and for a whole batch whose C code does not listen.
SECONDS, BATCH_SECONDS = 60, 300
NOISE = 10_000_000

NUMBERS = [
    b"-1", b"0", b"1", b"4", b"255", b"2147483648", b"9223372036854775807", b"9" * 30, b"9" * 5000,
    b"nan", b"inf", b"-inf", b"1e400", b"1e-400", b"0x10", b"1_0", b"1.5", b"", b"word", b"\xff",
    b"\0", "٣".encode(), b"#", b"%", b",", b"\n", b"\r\n", b" ", b"\t", b"[" * 2000, b'"', b"'",
]  # fmt: skip


# --- valid files -----------------------------------------------------------------------------


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


# --- hostile files ---------------------------------------------------------------------------


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


# --- loaders ---------------------------------------------------------------------------------

Maker = Callable[[random.Random], bytes]


@dataclass(frozen=True)
class Target:
    """A loader: the name of its file, valid files, hostile makers, and how it is read."""

    file: str
    valid: list[bytes]
    hostile: list[Maker]
    read: Callable[[Path], object]

    def input(self, draw: random.Random) -> bytes:
        """One input."""
        choice = draw.random()
        if choice < 0.1:
            return noise(draw)
        if self.hostile and choice < 0.5:
            return draw.choice(self.hostile)(draw)
        data = draw.choice(self.valid)
        if self.file.endswith(".gz") and choice < 0.85:
            return gzip.compress(mutated(draw, gzip.decompress(data)), 1)
        return mutated(draw, data)


def read_everything(path: Path) -> None:
    """A graph file as a graph, and as a data set."""
    for reader in (load_graph, load):
        try:
            reader(path)
        except MaxKError:
            if reader is load:
                raise


def targets(folder: Path) -> dict[str, Target]:
    """All loaders; a trained run is made in ``folder``."""
    torch.set_num_threads(1)
    config = TrainConfig(
        dataset="synthetic:nodes=40,degree=3,communities=3,features=6", hidden=8, k=2, layers=1,
        epochs=2, device="cpu", quiet=True, out=str(folder / "run"),
    )  # fmt: skip
    made, _ = runs.run(config)
    trainer = Trainer(config)
    state, weights = (made / "state.pt").read_bytes(), (made / "last.safetensors").read_bytes()
    rows = sorted((ROOT / "results").glob("*/*.jsonl"))
    lines = [row.read_bytes()[:4000] for row in rows if "accuracy" not in row.parts][:3]
    recipes = [path.read_bytes() for path in sorted((ROOT / "recipes").glob("*.toml"))[:5]]

    def resume(path: Path) -> None:
        found = checkpoint.load_state(path.parent)
        if found is not None:
            trainer.load_state(found)

    def foreign(draw: random.Random) -> bytes:
        whole = torch.load(io.BytesIO(state), weights_only=True)
        name = draw.choice(sorted(whole))
        change = draw.randrange(3)
        if change == 0:
            del whole[name]
        elif change == 1:
            whole[name] = draw.choice([None, 3, "text", [], {}, torch.zeros(2), -1, float("nan")])
        elif isinstance(whole[name], dict) and whole[name]:
            inner = draw.choice(sorted(map(str, whole[name])))
            whole[name][inner] = draw.choice([None, torch.zeros(3), "text", {}])
        buffer = io.BytesIO()
        torch.save(whole, buffer)
        return buffer.getvalue()

    def code(draw: random.Random) -> bytes:
        buffer = io.BytesIO()
        torch.save({"format": checkpoint.FORMAT, "epoch": Code()}, buffer)
        return buffer.getvalue()

    def misled(draw: random.Random) -> bytes:
        dtype = draw.choice(["F32", "F64", "F8_E4M3", "X", "BOOL", "BF16"])
        ends = draw.choice([[0, 8], [0, 2**62], [-8, 0], [8, 0], [0, 4], ["a", 0]])
        table = {"lin_in.bias": {"dtype": dtype, "shape": [2], "data_offsets": ends}}
        raw = json.dumps(table).encode()
        length = draw.choice([len(raw), 2**63 - 1, 0, len(raw) + 1])
        return length.to_bytes(8, "little") + raw + bytes(8)

    pack = gzip.compress
    return {
        "npz": Target(
            "g.npz", [archive(dataset_arrays()), archive(sparse_arrays(), packed=True)],
            [other_arrays, other_arrays, zipped], read_everything,
        ),
        "npy": Target("x.npy", [array_file(np.arange(12.0))], [header], read_npy),
        "edge list": Target("e.csv", [EDGES, PAIRS], [], read_everything),
        "edge list, gzipped": Target(
            "e.tsv.gz", [pack(EDGES), pack(PAIRS)], [text_bomb], read_everything
        ),
        "table": Target("t.txt", [b"1,2,nan\n3,4,5\n", b"a\tb\n1 2\n"], [], read_table),
        "MatrixMarket": Target("m.mtx", [MATRIX, SYMMETRIC], [], read_everything),
        "MatrixMarket, gzipped": Target("m.mtx.gz", [pack(MATRIX)], [text_bomb], read_everything),
        "checkpoint": Target("state.pt", [state], [foreign, code], resume),
        "weights": Target(
            "best.safetensors", [weights], [misled],
            lambda path: trainer.load_weights(checkpoint.load_weights(path)),
        ),
        "recipe": Target("r.toml", recipes, [], TrainConfig.from_toml),
        "settings of a run": Target(
            "config.toml", [(made / "config.toml").read_bytes()], [],
            lambda path: resumed_config(path.parent),
        ),
        "results": Target("r.jsonl", lines, [], lambda path: list(record.read(path))),
    }  # fmt: skip


class Code:
    """What a pickle that runs code looks like."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/maxk-fuzz-ran-code",)


# --- batches ---------------------------------------------------------------------------------


class Slow(BaseException):
    """An input took too long."""


def run_batch(makers: dict[str, Target], seed: int, place: Path, log: Path) -> None:
    """Reads the inputs of one batch and writes a line for each; runs in a child process."""
    sizes = Path("/proc/self/statm").read_text().split()
    used = int(sizes[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))

    def late(*_: object) -> None:
        raise Slow

    signal.signal(signal.SIGALRM, late)
    draw = random.Random(seed)
    with log.open("w") as file:
        for number in range(BATCH):
            name = draw.choice(sorted(makers))
            target = makers[name]
            inner = place / f"{number}" / "inner"
            inner.mkdir(parents=True)
            path = inner / target.file
            path.write_bytes(target.input(draw))
            file.write(json.dumps({"format": name, "file": str(path), "result": "crash"}) + "\n")
            file.flush()
            result, why = "accepted", ""
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    target.read(path)
            except MaxKError as error:
                result = "refused" if path.name in str(error) or name in NAMELESS else "nameless"
                why = "" if result == "refused" else str(error)
            except Slow:
                result = "slow"
            except BaseException:
                result, why = "exception", traceback.format_exc()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            left = {p.name for p in (place / f"{number}").rglob("*")} - {"inner", target.file}
            if left - {checkpoint.STATE}:
                result, why = "left a file", str(left)
            line = {"format": name, "file": str(path), "result": result, "why": why}
            file.write(json.dumps(line) + "\n")
            file.flush()
            if result in ("accepted", "refused"):
                shutil.rmtree(place / f"{number}")


#: Refusals that speak of the data or the model, and name no file.
NAMELESS = {"checkpoint", "weights"}


def batch(makers: dict[str, Target], seed: int, place: Path) -> list[dict[str, str]]:
    """One batch in a child: a row for each input, its last line where the child ended early."""
    log = place / "log.jsonl"
    sys.stdout.flush()
    number = os.fork()
    if number == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        try:
            run_batch(makers, seed, place, log)
            os._exit(0)
        except BaseException:
            place.with_suffix(".error").write_text(traceback.format_exc())
            os._exit(70)
    deadline = time.monotonic() + BATCH_SECONDS
    status = None
    while status is None:
        done, code = os.waitpid(number, os.WNOHANG)
        if done:
            status = os.waitstatus_to_exitcode(code)
        elif time.monotonic() > deadline:
            os.kill(number, signal.SIGKILL)
        else:
            time.sleep(0.02)
    rows: dict[str, dict[str, str]] = {}
    for line in log.read_text().splitlines() if log.exists() else []:
        row = json.loads(line)
        rows[row["file"]] = row
    found = list(rows.values())
    if status != 0:
        last = found[-1] if found else {"format": "none", "file": "", "result": "crash"}
        if last["result"] == "crash":
            last["why"] = f"the child ended with {status}"
        else:
            error = place.with_suffix(".error")
            why = error.read_text() if error.exists() else f"the child ended with {status}"
            found.append({"format": "none", "file": "", "result": "crash", "why": why})
    return found


def main() -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--batches", type=int, help="stop after so many batches instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one format")
    parser.add_argument("--keep", type=Path, default=Path("/tmp/maxk-fuzz"))
    parser.add_argument("--no-record", action="store_true", help="leave results/ as it is")
    given = parser.parse_args()
    start = time.monotonic()
    counts: Counter[tuple[str, str]] = Counter()
    findings: list[dict[str, str]] = []
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    ran_code = Path("/tmp/maxk-fuzz-ran-code")
    ran_code.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="maxk-fuzz-", dir=memory) as name:
        makers = targets(Path(name))
        if given.only:
            makers = {given.only: makers[given.only]}
        done = 0
        while (done < given.batches) if given.batches else (
            time.monotonic() - start < 60 * given.minutes
        ):  # fmt: skip
            place = Path(name) / f"batch-{done}"
            place.mkdir()
            for row in batch(makers, given.seed * 1_000_000 + done, place):
                counts[row["format"], row["result"]] += 1
                if row["result"] not in ("accepted", "refused"):
                    given.keep.mkdir(parents=True, exist_ok=True)
                    if row["file"] and Path(row["file"]).exists():
                        kept = given.keep / f"{done}-{len(findings)}-{Path(row['file']).name}"
                        shutil.copy(row["file"], kept)
                        row["file"] = str(kept)
                    findings.append(row)
                    last = row.get("why", "").strip().splitlines()[-1:]
                    print(f"FOUND {row['result']} {row['format']} {row['file']} {last}", flush=True)
            shutil.rmtree(place)
            done += 1
    if ran_code.exists():
        findings.append({"format": "checkpoint", "result": "ran code", "file": "", "why": ""})
    formats = sorted({name for name, _ in counts})
    report = {
        "commit": subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True
        ).stdout.strip(),
        "seed": given.seed, "minutes": round((time.monotonic() - start) / 60, 1),
        "inputs": sum(counts.values()), "findings": len(findings),
        "largest resident set of a child, MiB":
            resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
        "formats": {
            name: {result: n for (which, result), n in sorted(counts.items()) if which == name}
            for name in formats
        },
    }  # fmt: skip
    print(json.dumps(report, indent=1))
    if not given.no_record:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "fuzz.json").write_text(json.dumps(report, indent=1) + "\n")
    for finding in findings:
        print(finding.get("why", ""), file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
