"""Workers of every start method run kernels, also where their parent has run one before.

GNU OpenMP, whose threads a fork leaves behind, kills or blocks a child that asks for them again. In
processes of their own, since the one that runs the tests has threads of many kinds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import hashlib, multiprocessing, os, sys, threading, time
import torch, maxk

def bits(_=None):
    "Forward and backward, large enough that torch shares its own work among threads."
    torch.use_deterministic_algorithms(True)
    maxk.maxk(torch.ones(2, 3), 1)  # leaves torch one thread where the parent's are lost
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 3000, (2, 20_000), generator=generator)
    graph = maxk.Graph.from_edge_index(edges, 3000)
    digest = hashlib.sha256()
    for dtype, reduce in ((torch.float32, "mean"), (torch.float64, "gcn"), (torch.bfloat16, "sum")):
        x = torch.randn(3000, 48, generator=generator).to(dtype).requires_grad_()
        y = maxk.aggregate(graph, maxk.maxk(x, 4), reduce) + maxk.aggregate(graph, x, reduce)
        y.backward(y.detach().cos())
        for tensor in (y.detach(), x.grad):
            digest.update(tensor.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 2
    def __getitem__(self, i): return bits()

def forked(run):
    "What a child of os.fork says, or that it died."
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, run().encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        text = told.read()
    status = os.waitpid(child, 0)[1]
    return text if status == 0 else f"died with {status}"

def pool(method):
    with multiprocessing.get_context(method).Pool(2) as workers:
        return workers.map_async(bits, range(2)).get(60)

if __name__ == "__main__":
    torch.set_num_threads(2)
    way, before = sys.argv[1:]
    if before == "kernel":
        bits()
    elif before == "torch":
        torch.ones(4000, 400).mul(2).sum()
    if way in ("fork", "spawn", "forkserver"):
        found = pool(way)
    elif way == "loader":
        found = list(torch.utils.data.DataLoader(Rows(), num_workers=1, batch_size=None))
    elif way == "os.fork":
        found = [forked(bits)]
    elif way == "grandchild":
        found = [forked(lambda: forked(bits))]
    elif way == "child, then grandchild":
        found = [forked(lambda: (bits(), forked(bits))[1])]
    assert found and set(found) == {bits()}, found
"""

WAYS = ["fork", "loader", "os.fork", "grandchild", "child, then grandchild", "spawn", "forkserver"]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fork") / "script.py"
    path.write_text(CODE)
    return path


def run(script: Path, *words: str) -> None:
    done = subprocess.run(
        [sys.executable, str(script), *words], capture_output=True, text=True, timeout=180,
        env={**os.environ, "OMP_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_gives_the_bits_of_its_parent(script: Path, way: str) -> None:
    run(script, way, "kernel")


@pytest.mark.parametrize("before", ["nothing", "torch"])
@pytest.mark.parametrize("way", ["fork", "loader"])
def test_a_worker_is_the_first_to_run_a_kernel(script: Path, way: str, before: str) -> None:
    run(script, way, before)


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2", **environment},
    )  # fmt: skip


def test_a_child_forked_while_a_thread_compiles_can_compile(tmp_path: Path) -> None:
    code = """
import os, threading, torch, maxk
from maxk.device.compiling import compile_seconds
from numba.core import event
inside = threading.Event()

class Started(event.Listener):
    def on_start(self, event): inside.set()
    def on_end(self, event): pass

event.register("numba:compile", Started())
thread = threading.Thread(target=maxk.maxk, args=(torch.randn(9, 8), 2))
thread.start()
assert inside.wait(100)
child = os.fork()
if child == 0:
    before = compile_seconds()
    values = maxk.maxk(torch.randn(9, 8).double(), 2).values
    os._exit(0 if values.shape == (9, 2) and compile_seconds() > before else 1)
thread.join()
raise SystemExit(os.waitpid(child, 0)[1])
"""
    done = python(code, MAXK_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_a_child_whose_parent_used_the_gpu_is_told_to_spawn() -> None:
    code = """
import os, pathlib, torch
from maxk.core.errors import DeviceError
from maxk.device import kernel
spec = kernel.Spec(pathlib.Path("a.cu"), "a", ())
kernel._kernels[spec, 0] = object()
child = os.fork()
if child == 0:
    try:
        kernel.kernel(spec, "p", torch.device("cuda", 0))
    except DeviceError as error:
        os._exit(0 if "get_context('spawn')" in str(error) else 2)
    os._exit(1)
raise SystemExit(os.waitpid(child, 0)[1])
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
