from __future__ import annotations

import itertools
import types
from dataclasses import replace
from typing import Any

import pytest
import torch

from maxk.bench.kernels import ours, run
from maxk.bench.kernels.cases import SUITES, Case
from maxk.bench.kernels.comparators import Comparator
from maxk.bench.kernels.gate import GateError
from maxk.bench.kernels.run import KernelBench, kernels
from maxk.data.synthetic import SyntheticConfig
from maxk.measure.record import Row
from maxk.measure.rows import from_json, to_json

CASE = Case("little", SyntheticConfig(nodes=60, degree=6.0), widths=(12,), ks=(3, 12, 40))
BENCH = KernelBench("quick", (CASE,), torch.device("cpu"), rounds=1, budget_s=1.0)


def measured(bench: KernelBench = BENCH) -> tuple[list[Row], list[str]]:
    said: list[str] = []
    return list(itertools.chain(*kernels(bench, said.append))), said


def test_rows_cover_every_op_k_and_contender() -> None:
    rows, said = measured()
    seen = {(r.op, r.implementation, r.k, r.against) for r in rows}
    for k in (3, 12):
        for op in ("forward", "backward"):
            assert {(op, "auto", k, a) for a in (None, "torch.sparse", "best-dense")} <= seen
            assert (op, "torch.sparse", k, None) in seen
        assert {("maxk", "auto", k, None), ("maxk", "auto", k, "torch.topk")} <= seen
    # Does not depend on k, so it is measured beside the first only.
    assert ("forward", "auto", 3, "relu-spgemm") in seen
    assert ("forward", "auto", 12, "relu-spgemm") not in seen
    assert ("spmm", "auto", None, "torch.sparse") in seen
    assert not any(r.k == 40 for r in rows)
    assert {"merge-path", "neighbor-groups"} == {text.split()[2] for text in said}


def test_rows_are_complete_and_valid() -> None:
    rows, _ = measured()
    for row in rows:
        assert from_json(Row, to_json(row)).key == row.key
        assert (row.nodes, row.graph, row.device) == (60, "little", "cpu")
        assert row.gbps is not None and row.fraction is not None and row.ms_low <= row.ms_high
        assert (row.ratio is None) == (row.against is None)
    by_key = {(r.op, r.k, r.implementation): r.ms for r in rows if r.against is None}
    for row in rows:
        if row.against is not None and row.op != "spmm":
            theirs = by_key[row.op, row.k, row.against]
            assert row.ratio == pytest.approx(theirs / row.ms)


def test_16_bit_values_pass_their_own_gate() -> None:
    rows, said = measured(replace(BENCH, dtype=torch.bfloat16, ops=("forward", "backward")))
    assert {r.dtype for r in rows} == {"bfloat16"}
    assert "not timed: torch.sparse forward" in " ".join(said)


def test_64_bit_values_pass_their_own_gate() -> None:
    rows, _ = measured(replace(BENCH, dtype=torch.float64, ops=("forward", "backward")))
    assert {r.dtype for r in rows} == {"float64"}


def test_choices_narrow_the_run() -> None:
    bench = replace(
        BENCH, ops=("forward",), against=("torch.sparse",), implementations=("auto", "reference")
    )
    rows, said = measured(bench)
    assert {r.op for r in rows} == {"forward"}
    assert {r.implementation for r in rows} == {"auto", "reference", "torch.sparse"}
    assert {r.against for r in rows} == {None, "torch.sparse"}
    assert said == []


@pytest.mark.parametrize("op", ["forward", "backward", "maxk"])
def test_a_wrong_implementation_is_not_timed(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if op == "maxk":
        real_select = ours.selection
        calls = iter(range(100))

        def select(x: torch.Tensor, k: int, implementation: str = "auto") -> Any:
            if next(calls) == 0:  # the features of the problem itself
                return real_select(x, k)
            return real_select(-x, k)

        monkeypatch.setattr(ours, "selection", select)
    else:
        real = getattr(ours, op)

        def broken(problem: Any, implementation: str = "auto") -> Any:
            def call() -> torch.Tensor:
                out: torch.Tensor = real(problem, implementation)().clone()
                out[7, 0] = float("nan")
                return out

            return call

        monkeypatch.setattr(ours, op, broken)
    monkeypatch.setattr(run, "interleave", lambda *args, **kwargs: pytest.fail("it was timed"))
    with pytest.raises(GateError, match=f"{op} by auto on little, D = 12, k = 3 is wrong"):
        measured(replace(BENCH, ops=(op,)))


def test_wrong_and_failing_comparators_are_named_and_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(problem: Any, op: str) -> Any:
        raise RuntimeError("no such kernel\nlong trace")

    def wrong(problem: Any, op: str) -> Any:
        return lambda: torch.zeros(60, 12)

    nobody = Comparator("nobody", ("forward",), fails, lambda problem, op: None)
    liar = Comparator("liar", ("forward",), wrong, lambda problem, op: None)
    monkeypatch.setattr(run, "comparators", lambda: (nobody, liar))
    rows, said = measured(replace(BENCH, ops=("forward",)))
    assert {r.implementation for r in rows} == {"auto"}
    assert said[0].endswith("no such kernel")
    assert said[1].startswith("not timed: liar forward on little, D = 12: wrong (error 1.0e+00")


def test_suites_can_be_built_small() -> None:
    for suite in SUITES.values():
        for case in suite:
            assert case.scaled(0.001).build().num_edges > 0


def test_a_comparator_may_break_ties_its_own_way() -> None:
    problem = types.SimpleNamespace(x=torch.tensor([[1.0, 2.0, 2.0, 0.0]]), k=1)
    last = (torch.tensor([[2.0]]), torch.tensor([[2]]))
    assert run._same_values(problem, last)
    assert not run._same_selection(problem, last)
    assert not run._same_values(problem, (torch.tensor([[1.0]]), torch.tensor([[0]])))
