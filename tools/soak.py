"""Trains for a thousand epochs and shows that memory stays flat and losses finite.

    python tools/soak.py                       # on the CPU
    python tools/soak.py --device cuda         # on a GPU; also without a CUDA graph

The memory in use is taken every 20 epochs. Behind the first tenth, in which kernels are compiled
and buffers made, neither the resident set nor what torch holds on the GPU may grow by more than
2 %.
The result goes to results/reliability/soak-DEVICE.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import resource
import subprocess
import sys
from pathlib import Path

import torch

from maxk.train.config import TrainConfig
from maxk.train.loop import Trainer

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "reliability"

EVERY = 20
GROWTH = 0.02


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def soak(config: TrainConfig) -> dict[str, object]:
    """Trains to the end; returns what the memory did and whether all losses are finite."""
    trainer = Trainer(config)
    sizes: list[int] = []
    on_device: list[int] = []
    while not trainer.finished:
        trainer.train_epoch()
        if trainer.epoch % EVERY == 0:
            gc.collect()
            sizes.append(resident())
            if trainer.device.type == "cuda":
                on_device.append(torch.cuda.memory_allocated(trainer.device))
    settled = len(sizes) // 10
    row: dict[str, object] = {
        "epochs": trainer.epoch,
        "cuda graph": config.cuda_graph and trainer.device.type == "cuda",
        "losses finite": all(math.isfinite(epoch.loss) for epoch in trainer.history),
        "first loss": trainer.history[0].loss,
        "last loss": trainer.history[-1].loss,
    }
    for name, values in (("resident set", sizes), ("torch on the GPU", on_device)):
        if values:
            first, last = values[settled], max(values[-3:])
            row[f"{name}, MiB, after a tenth and at the end"] = [first >> 20, last >> 20]
            row[f"{name}, flat"] = last <= first * (1 + GROWTH)
    return row


def main() -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--no-record", action="store_true", help="leave results/ as it is")
    given = parser.parse_args()
    rows = []
    for graph in (True, False) if given.device != "cpu" else (True,):
        config = TrainConfig(
            dataset="synthetic:nodes=2000,degree=10,communities=5,features=64", hidden=128, k=16,
            layers=2, dropout=0.5, epochs=given.epochs, device=given.device, cuda_graph=graph,
        )  # fmt: skip
        rows.append(soak(config))
        print(json.dumps(rows[-1], indent=1), flush=True)
    good = all(
        value is not False for row in rows for name, value in row.items() if name != "cuda graph"
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    if not given.no_record:
        RESULTS.mkdir(parents=True, exist_ok=True)
        path = RESULTS / f"soak-{given.device.partition(':')[0]}.json"
        path.write_text(json.dumps({"commit": commit, "runs": rows}, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
