"""Training steps timed against each other."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from maxk.bench.timing import new_pool, replayed, time_steps
from maxk.train.step import Step

CPU = torch.device("cpu")


class Counted:
    """Notes how it was run; its parts take 3 ms by its own clock."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    def __call__(self) -> None:
        self.seen.append(self.name)

    def parts(self) -> dict[str, float]:
        self.seen.append(f"{self.name} in parts")
        return {"forward": 1.0, "dense": 2.0}


def steps(seen: list[str], *names: str) -> dict[str, Step]:
    return {name: cast(Any, Counted(name, seen)) for name in names}


def test_parts_come_from_the_rounds_themselves_on_a_cpu() -> None:
    seen: list[str] = []
    timed = time_steps(steps(seen, "a", "b"), CPU, rounds=2, budget_s=60.0, parts=["a"], warmup=1)
    assert seen == ["a", "b", "a in parts", "b", "b", "a in parts"]
    assert timed["a"].timing.samples == (3.0, 3.0)
    assert timed["a"].parts == {"forward": 1.0, "dense": 2.0}
    assert timed["b"].parts is None and 0 < timed["b"].timing.ms < 3.0


def test_a_call_is_timed_instead_of_its_step() -> None:
    seen: list[str] = []
    calls = {"a": lambda: seen.append("replay")}
    time_steps(steps(seen, "a"), CPU, rounds=1, budget_s=60.0, calls=calls, warmup=0)
    assert seen == ["replay"]


@pytest.mark.parametrize("least", [1, 2, 3])
def test_the_budget_leaves_the_least_rounds(least: int) -> None:
    timed = time_steps(steps([], "a"), CPU, rounds=9, budget_s=0.0, least=least)
    assert len(timed["a"].timing.samples) == least


def test_nothing_is_replayed_on_a_cpu() -> None:
    (step,) = steps([], "a").values()
    assert replayed(step, CPU, new_pool(CPU)) is step and new_pool(CPU) is None
