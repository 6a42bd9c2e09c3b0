"""Breaks the package in every way that tools/mutants.toml lists, and shows that the suite notices.

    python tools/mutate.py                     # all that needs no GPU; about 20 minutes on 2 cores
    python tools/mutate.py --gpu               # those in CUDA sources, on a machine with a GPU
    python tools/mutate.py spgemm-odd-edge     # some, by name

Works on a copy of the last commit in a temporary folder: the checkout is never touched. First the
tests must pass on the copy as it is; then each fault is put in, the tests that must catch it run
until the first failure, and the fault is taken out. Exits with 1 where a fault survives or its text
is no longer there. The rows go to results/reliability/mutants.json, with --gpu to mutants-gpu.json,
in place of older ones of the same faults.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tools" / "mutants.toml"
RESULTS = ROOT / "results" / "reliability"

#: A fault may make a loop endless.
TIMEOUT = 900
#: For all tests at once, on the package as it is.
BASELINE_TIMEOUT = 3600
#: Exit codes of pytest when a test failed: the second where several processes run tests and stop
#: at the first that fails. Others mean that none was found or pytest itself broke.
FAILED = (1, 2)


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        name: what it is called.
        breaks: what is wrong then.
        file: the source below ``src/maxk``.
        old: the text that goes; stands exactly once in the file.
        new: the text that comes.
        tests: files below ``tests``, or tests in them, that must catch it.
        gpu: whether it shows on a GPU only.
    """

    name: str
    breaks: str
    file: str
    old: str
    new: str
    tests: list[str] = field(default_factory=list)
    gpu: bool = False


def mutants() -> list[Mutant]:
    """All faults of the list."""
    return [Mutant(**row) for row in tomllib.loads(LIST.read_text())["mutant"]]


def export(folder: Path) -> str:
    """Unpacks the last commit into a folder and returns the commit."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return commit.stdout.strip()


def run_tests(
    copy: Path, tests: list[str], *, gpu: bool, timeout: float = TIMEOUT
) -> tuple[str, str]:
    """Runs tests on the copy until one fails: (passed, failed, crashed, hung or none; which)."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy / "src"),
        "NUMBA_CACHE_DIR": str(copy / ".numba"),
        "MAXK_CACHE_DIR": str(copy / ".kernels"),
    }
    words = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    words += ["-m", "gpu", "--require", "gpu", "--long"] if gpu else []
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words, *(f"tests/{test}" for test in tests)],
            cwd=copy, env=environment, capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "hung", f"no end within {timeout:g} s"
    if done.returncode == 0:
        return "passed", ""
    if done.returncode < 0 or "Fatal Python error" in done.stderr:
        return "crashed", f"signal {-done.returncode}"
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode not in FAILED or not found:
        return "none", (done.stdout + done.stderr)[-2000:]
    return "failed", found[1]


def try_mutant(copy: Path, mutant: Mutant) -> dict[str, object]:
    """Puts a fault in, runs its tests, takes it out; returns the row of the table."""
    path = copy / "src" / "maxk" / mutant.file
    text = path.read_text()
    row: dict[str, object] = {
        "name": mutant.name, "breaks": mutant.breaks, "file": mutant.file,
    }  # fmt: skip
    if text.count(mutant.old) != 1:
        return {**row, "result": "stale", "by": f"its text stands {text.count(mutant.old)} times"}
    start = time.monotonic()
    try:
        path.write_text(text.replace(mutant.old, mutant.new))
        forget(copy, mutant)
        result, which = run_tests(copy, mutant.tests, gpu=mutant.gpu)
    finally:
        path.write_text(text)
        forget(copy, mutant)
    caught = result in ("failed", "crashed", "hung")
    word = {"passed": "survived", "none": "no test ran"}.get(result, "caught")
    return {
        **row, "result": word, "by": which if caught or result == "none" else "",
        "seconds": round(time.monotonic() - start, 1),
    }  # fmt: skip


def forget(copy: Path, mutant: Mutant) -> None:
    """Drops compiled kernels that do not see the change: numba asks a kernel's own file only."""
    if mutant.file == "device/cpu.py":
        shutil.rmtree(copy / ".numba", ignore_errors=True)


def main() -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="faults to try; by default all")
    parser.add_argument("--gpu", action="store_true", help="those that show on a GPU only")
    parser.add_argument("--no-baseline", action="store_true", help="do not try the whole package")
    given = parser.parse_args()
    known = {mutant.name: mutant for mutant in mutants()}
    unknown = set(given.names) - known.keys()
    if unknown:
        parser.error(f"no fault is called {', '.join(sorted(unknown))}")
    chosen = [known[name] for name in given.names]
    if not chosen:
        chosen = [mutant for mutant in known.values() if mutant.gpu == given.gpu]
    rows: list[dict[str, object]] = []
    table = RESULTS / ("mutants-gpu.json" if given.gpu else "mutants.json")
    with tempfile.TemporaryDirectory(prefix="maxk-mutants-") as folder:
        copy = Path(folder)
        commit = export(copy)
        if not given.no_baseline:
            tests = sorted({test for mutant in chosen for test in mutant.tests})
            result, which = run_tests(copy, tests, gpu=given.gpu, timeout=BASELINE_TIMEOUT)
            if result != "passed":
                print(f"the package as it is does not pass ({result}): {which}", file=sys.stderr)
                return 1
        for mutant in chosen:
            row = {**try_mutant(copy, mutant), "commit": commit}
            rows.append(row)
            record([row], table)
            print(f"{row['result']:<12} {mutant.name:<30} {row['by']}", flush=True)
    missed = [row for row in rows if row["result"] != "caught"]
    print(f"{len(rows) - len(missed)} of {len(rows)} faults caught")
    return 1 if missed else 0


def record(rows: list[dict[str, object]], path: Path) -> None:
    """Writes rows into the table of results, in place of older ones of the same faults."""
    old = json.loads(path.read_text())["faults"] if path.exists() else []
    table = {row["name"]: row for row in [*old, *rows]}
    kept = [table[m.name] for m in mutants() if m.name in table]
    caught = sum(row["result"] == "caught" for row in kept)
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {"caught": caught, "faults": kept}
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
