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
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fuzz_files import (
    EDGES,
    MATRIX,
    PAIRS,
    SYMMETRIC,
    archive,
    array_file,
    dataset_arrays,
    header,
    mutated,
    noise,
    other_arrays,
    sparse_arrays,
    text_bomb,
    zipped,
)

from maxk.core.errors import MaxKError
from maxk.data.load import load
from maxk.graph.files import load_graph, read_npy, read_table
from maxk.measure.record import Row
from maxk.measure.rows import read as read_rows
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
        "results": Target("r.jsonl", lines, [], lambda path: list(read_rows(path, Row))),
    }  # fmt: skip


class Code:
    """What a pickle that runs code looks like."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/maxk-fuzz-ran-code",)


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
