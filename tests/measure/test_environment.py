from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch

from maxk.measure import environment as module
from maxk.measure.environment import commit, environment
from maxk.measure.memory import peak_memory


def test_the_facts_are_what_json_holds_and_torch_says() -> None:
    facts = environment()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["torch"] == torch.__version__
    assert facts["threads"] == torch.get_num_threads()
    assert facts["device"] == "cpu"
    assert facts["packages"]["numpy"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", facts["date"])


def test_the_commit_is_that_of_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    commit.cache_clear()
    root = Path(__file__).parents[2]
    if (root / ".git").exists():
        words = ["git", "-C", str(root), "rev-parse", "HEAD"]
        head = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert head.startswith(commit().removesuffix("-dirty"))
    # An installed copy may lie inside the repository of another project.
    monkeypatch.setattr(module, "__file__", str(root / ".venv/lib/maxk/measure/environment.py"))
    commit.cache_clear()
    assert commit() == "unknown"
    commit.cache_clear()


def test_peak_memory_grows_with_what_was_held() -> None:
    before = peak_memory("cpu")
    held = torch.ones(before // 4 + 40_000_000)  # four bytes each: more than was ever held
    assert peak_memory("cpu") >= before + 40_000_000
    del held
