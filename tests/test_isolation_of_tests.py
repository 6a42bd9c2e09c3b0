"""No test sees what another one did to torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import torch_state

TESTS = Path(__file__).parent

CHANGES: dict[str, Callable[[], object]] = {
    "float32 matmul precision": lambda: torch.set_float32_matmul_precision("medium"),
    "deterministic": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "threads": lambda: torch.set_num_threads(1 + torch.get_num_threads()),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "default device": lambda: torch.set_default_device("meta"),
    "gradients": lambda: torch.set_grad_enabled(False),
    "anomaly mode": lambda: torch.autograd.set_detect_anomaly(True),
    "multithreaded backward": lambda: torch.autograd.set_multithreading_enabled(False),
    "cudnn.benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "random": lambda: torch.rand(1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_test_changes_is_read_and_put_back(name: str) -> None:
    before = torch_state.snapshot()
    CHANGES[name]()
    try:
        changed = torch_state.snapshot()
        assert changed[name] != before[name]
    finally:
        torch_state.restore(before)
    assert torch_state.snapshot() == before


PAIR = """
import torch

DRAWN = []

def test_first():
    DRAWN.append(torch.rand(3).tolist())
    torch.set_float32_matmul_precision("medium")
    torch.use_deterministic_algorithms(True)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)

def test_second():
    assert [torch.rand(3).tolist()] == DRAWN
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert torch.get_default_device() == torch.device("cpu")
    assert torch.is_grad_enabled()
"""


def test_the_next_test_starts_with_the_state_before(tmp_path: Path) -> None:
    """Also random numbers: a test draws the same alone, among others and in any order."""
    for name in ("conftest.py", "torch_state.py"):
        (tmp_path / name).write_bytes((TESTS / name).read_bytes())
    (tmp_path / "test_pair.py").write_text(PAIR)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_pair.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
