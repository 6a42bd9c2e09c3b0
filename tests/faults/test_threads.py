"""Results do not depend on the number of threads, in deterministic mode to the bit.

In processes of their own: how many threads numba may use is fixed when it is imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache

CODE = """
import hashlib, json, sys
import torch, maxk
from maxk.train.config import TrainConfig
from maxk.train.loop import Trainer

threads, deterministic = int(sys.argv[1]), sys.argv[2] == "deterministic"
torch.set_num_threads(threads)
torch.use_deterministic_algorithms(deterministic)
g = torch.Generator().manual_seed(0)
edges = torch.randint(0, 300, (2, 6000), generator=g)
weight = torch.rand(6000, generator=g, dtype=torch.float64)

def backward(implementation, reduce):
    w = weight.clone().requires_grad_()
    x = torch.linspace(-1, 1, 300 * 48, dtype=torch.float64).sin().reshape(300, 48)
    x.requires_grad_()
    # Weights that learn would take the scales of gcn into themselves.
    graph = maxk.Graph.from_edge_index(edges, 300, w if reduce == "mean" else None)
    h = maxk.maxk(x, 4, implementation=implementation)
    y = maxk.aggregate(graph, h, reduce, implementation=implementation)
    y.cos().sum().backward()
    return [y.detach(), x.grad, *([w.grad] if reduce == "mean" else [])]

ours = []
for reduce in ("mean", "gcn"):
    results = backward("cpu", reduce)
    ours += results
    for got, want in zip(results, backward("reference", reduce)):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
bits = hashlib.sha256(b"".join(t.numpy().tobytes() for t in ours)).hexdigest()
config = TrainConfig(
    dataset="synthetic:nodes=300,degree=6,communities=3,features=16", hidden=32, k=4, layers=2,
    epochs=3, device="cpu", deterministic=deterministic,
)
trainer = Trainer(config)
trainer.fit()
state = trainer.model.state_dict()
weights = hashlib.sha256(b"".join(t.numpy().tobytes() for t in state.values())).hexdigest()
import numba
print(json.dumps([numba.get_num_threads(), bits, weights]))
"""


@cache
def trained(threads: int, mode: str, turn: int = 0) -> tuple[int, str, str]:
    """Threads that numba used, and the bits of one backward pass and of trained weights."""
    environment = {**os.environ, "NUMBA_NUM_THREADS": "4", "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(threads), mode],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    used, bits, weights = json.loads(done.stdout.splitlines()[-1])
    return used, bits, weights


def test_several_threads_give_the_right_sums() -> None:
    assert trained(3, "fast")[0] == 3


def test_deterministic_mode_gives_the_same_bits_on_any_number_of_threads() -> None:
    one, several = trained(1, "deterministic"), trained(3, "deterministic")
    assert (one[0], several[0]) == (1, 3)
    assert several[1:] == one[1:]


def test_a_new_process_with_as_many_threads_gives_the_same_bits() -> None:
    assert trained(3, "fast", 1)[1:] == trained(3, "fast")[1:]
