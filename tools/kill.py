"""Kills training runs with SIGKILL and shows that resuming gives the bits of a run never stopped.

    python tools/kill.py                # 50 runs; about five minutes on 2 cores

Every run saves after each epoch. Half of the runs are killed by the clock, at a random moment; the
others end themselves in the middle of a write: with half of a file's bytes on the disk, before its
flush, before one of the renames. A run may be killed several times before it is resumed to its end.
Then last.safetensors and best.safetensors must equal those of a run never stopped byte for byte,
and epochs.jsonl must hold the same losses. The result goes to results/reliability/kills.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "reliability"

#: Small enough for 50 runs, large enough that a file takes a while to write; dropout shows whether
#: the random state comes back.
SETTINGS = """
dataset = "synthetic:nodes=300,degree=5,communities=4,features=32"
model = "sage"
hidden = 96
k = 8
layers = 3
dropout = 0.5
epochs = {epochs}
device = "cpu"
"""


class Writes:
    """Counts the steps of writing files in this process, and ends it at one of them."""

    def __init__(self, last: int | None) -> None:
        self.count = 0
        self.last = last
        self.seen: Counter[str] = Counter()

    def step(self, kind: str, half: Callable[[], object] = lambda: None) -> None:
        """One step is about to be made; at the last one, does half of it and kills the process."""
        self.count += 1
        self.seen[kind] += 1
        if self.count == self.last:
            half()
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """Puts the steps in front of what the package writes files with."""
        real_open, real_replace, real_fsync = Path.open, Path.replace, os.fsync

        def opened(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> IO[Any]:
            file = real_open(path, mode, *args, **kwargs)
            if "w" in mode or "a" in mode:
                real_write = file.write

                def write(data: Any) -> int:
                    def half() -> None:
                        real_write(data[: len(data) // 2])
                        file.flush()

                    self.step("half of the bytes", half)
                    return real_write(data)

                return _Written(file, write)
            return file

        def replace(path: Path, target: Any) -> Path:
            self.step("rename")
            return real_replace(path, target)

        def fsync(descriptor: int) -> None:
            self.step("flush")
            real_fsync(descriptor)

        Path.open, Path.replace, os.fsync = opened, replace, fsync  # type: ignore[method-assign]


class _Written:
    """A file whose ``write`` is another function."""

    def __init__(self, file: IO[Any], write: Callable[[Any], int]) -> None:
        self._file, self.write = file, write

    def __enter__(self) -> _Written:
        return self

    def __exit__(self, *reason: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def child(words: list[str], last: int | None, log: Path) -> int:
    """Starts ``maxk train`` in a process of its own and returns its id.

    The process is a fork of this one, which has imported everything and computed nothing: an import
    takes longer than the run.
    """
    number = os.fork()
    if number:
        return number
    code = 70
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        from maxk.cli.main import main as command
        from maxk.train import run as runs

        runs.SAVE_SECONDS = 0.0
        writes = Writes(last)
        writes.watch()
        code = command(["train", *words, "--quiet"])
        sys.stdout.flush()
        sys.stderr.flush()
        log.with_suffix(".steps").write_text(str(writes.count))
    finally:
        os._exit(code)


def ended(number: int) -> int:
    """Waits for a child: its exit code, or minus the signal."""
    status = os.waitpid(number, 0)[1]
    return os.waitstatus_to_exitcode(status)


def outcome(folder: Path) -> tuple[bytes, bytes, list[float]]:
    """Last weights, best weights, losses."""
    lines = (folder / "epochs.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    last, best = ((folder / f"{name}.safetensors").read_bytes() for name in ("last", "best"))
    return last, best, losses


def main() -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-record", action="store_true", help="leave results/ as it is")
    given = parser.parse_args()
    draw = random.Random(given.seed)

    import numba  # noqa: F401  loaded once, in the parent
    import sklearn.metrics  # noqa: F401
    import torch

    import maxk.cli.train
    import maxk.ops.maxk.cpu
    import maxk.ops.spgemm.cpu
    import maxk.ops.sspmm.cpu
    import maxk.train.run  # noqa: F401

    torch.set_num_threads(1)
    # A kill leaves what was written to the system, so a file system in memory shows the same as a
    # disk, sooner.
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="maxk-kill-", dir=memory) as name:
        place = Path(name)
        settings = place / "settings.toml"
        settings.write_text(SETTINGS.format(epochs=given.epochs))
        words = ["--config", str(settings), "--out"]
        # The first run compiles the kernels; the second is what a run takes.
        for out in ("compiled", "whole"):
            start = time.monotonic()
            if ended(child([*words, str(place / out)], None, place / f"{out}.log")):
                print((place / f"{out}.log").read_text(), file=sys.stderr)
                return 1
            seconds = time.monotonic() - start
        steps = int((place / "whole.steps").read_text())
        want = outcome(place / "whole")
        kills: Counter[str] = Counter()
        different = []
        for run in range(given.runs):
            out, log = place / f"run-{run}", place / f"run-{run}.log"
            by_clock = run % 2 == 0
            for _ in range(draw.choice((1, 1, 2, 3))):
                saved = (out / "config.toml").exists()
                begin = ["--resume", str(out)] if saved else [*words, str(out)]
                last = None if by_clock else draw.randint(1, steps)
                number = child(begin, last, log)
                if by_clock:
                    time.sleep(draw.uniform(0, seconds))
                    os.kill(number, signal.SIGKILL)
                if ended(number) == -signal.SIGKILL:
                    kills["clock" if by_clock else "write"] += 1
            saved = (out / "config.toml").exists()
            final = child(["--resume", str(out)] if saved else [*words, str(out)], None, log)
            code = ended(final)
            left = [path.name for path in out.glob("*.tmp")] + [p.name for p in out.glob(".*.tmp")]
            good = code == 0 and outcome(out) == want and not left
            if not good:
                different.append(run)
                print(f"run {run}: exit {code}, left {left}\n{log.read_text()}", file=sys.stderr)
            print(f"run {run:>2}: {'same bits' if good else 'DIFFERENT'}", flush=True)
    row = {
        "commit": subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True
        ).stdout.strip(),
        "runs": given.runs, "kills by the clock": kills["clock"],
        "kills in a write": kills["write"], "steps of writing in a run": steps,
        "same bits": given.runs - len(different),
    }  # fmt: skip
    print(json.dumps(row))
    if not given.no_record:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "kills.json").write_text(json.dumps(row, indent=1) + "\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
