"""Kernels against their comparators: problems -> gate -> interleaved timing -> rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from maxk.bench.kernels import ours
from maxk.bench.kernels.cases import Case
from maxk.bench.kernels.ceiling import Ceilings
from maxk.bench.kernels.comparators import Comparator, comparators
from maxk.bench.kernels.gate import Accuracy, Expected, GateError, Truth, judge, run_poisoned
from maxk.bench.kernels.problem import Problem, random_matrix
from maxk.bench.show import Say
from maxk.cbsr import CBSR
from maxk.measure import traffic
from maxk.measure.record import Row, stamp
from maxk.measure.timer import Timing, interleave, ratio
from maxk.ops.maxk import reference
from maxk.ops.spmm.reference import accumulation_dtype

OPS = ("forward", "backward", "maxk")
DTYPES = ("float32", "float64", "bfloat16", "float16")
IMPLEMENTATIONS = (ours.AUTO, "cpu", "cuda", "reference")

#: Which bytes an operation moves; ours, and those of the dense and public ones.
_OURS = {"forward": traffic.spgemm, "backward": traffic.sspmm, "maxk": traffic.maxk}
_THEIRS = {"forward": traffic.spmm, "backward": traffic.spmm, "maxk": traffic.topk}


@dataclass(frozen=True)
class KernelBench:
    """What ``bench kernels`` runs.

    Attributes:
        suite: Name of the suite, as rows carry it.
        cases: Graphs with their widths and k.
        device: Where.
        dtype: Of the values.
        reduce: ``sum`` or ``mean``.
        ops: Of ``forward``, ``backward``, ``maxk``.
        implementations: Of ours; ``auto`` is what a user gets.
        against: Names of comparators; all by default.
        rounds: Rounds of each timing, at most.
        budget_s: Seconds after which a timing stops, at three rounds or more.
        seed: Of the generated graphs; features are drawn afresh in every run.
    """

    suite: str
    cases: tuple[Case, ...]
    device: torch.device
    dtype: torch.dtype = torch.float32
    reduce: str = "mean"
    ops: tuple[str, ...] = OPS
    implementations: tuple[str, ...] = (ours.AUTO,)
    against: tuple[str, ...] = ()
    rounds: int = 9
    budget_s: float = 20.0
    seed: int = 0


def kernels(bench: KernelBench, say: Say) -> Iterator[list[Row]]:
    """Yields the rows of one (graph, width, k) after the other.

    Args:
        bench: What to run.
        say: Called with what is absent, wrong or skipped, in words.

    Raises:
        GateError: One of our implementations is wrong; nothing of that problem is timed.
    """
    facts = stamp(bench.device)
    ceilings = Ceilings(bench.device)
    chosen = [c for c in comparators() if not bench.against or c.name in bench.against]
    for case in bench.cases:
        graph = case.build(device=bench.device, seed=bench.seed).prepare(bench.reduce)
        for width in case.widths:
            context = _Context(bench, facts, ceilings, case, say)
            x = random_matrix(graph.num_src, width, graph, bench.dtype)
            grad = random_matrix(graph.num_dst, width, graph, bench.dtype)
            truths = _Truths(graph, bench.reduce, x, grad)
            ks = [k for k in case.ks if k <= width]
            for k in ks:
                features = ours.selection(x, k)()
                problem = Problem(graph, bench.reduce, x, grad, features)
                others = [c for c in chosen if c.depends_on_k or k == ks[0]]
                rows: list[Row] = []
                for op in bench.ops:
                    rows += context.measure(problem, op, others, truths)
                if k == ks[0]:
                    rows += _dense_rows(rows)
                yield rows


class _Truths:
    """Float64 results; those that do not depend on k are kept."""

    def __init__(self, graph: Any, reduce: str, x: Tensor, grad: Tensor) -> None:
        scales = accumulation_dtype(x.dtype)
        self._truth = Truth(graph.adjacency(reduce, scales), graph.weight)
        self._x, self._grad = x, grad
        self._kept: dict[str, Expected] = {}

    def get(self, what: str) -> Expected:
        """Returns the truth of ``x``, ``relu`` or ``backward``."""
        if what not in self._kept:
            makers: dict[str, Callable[[], Expected]] = {
                "x": lambda: self._truth.forward(self._x),
                "relu": lambda: self._truth.forward(self._x.relu()),
                "backward": lambda: self._truth.backward(self._grad),
            }
            self._kept[what] = makers[what]()
        return self._kept[what]

    def cbsr(self, features: CBSR, *, fixed: bool) -> Expected:
        """Returns the truth of compressed features; ``fixed`` where words may hold them."""
        dense = reference.scatter(features.values, features.columns, features.width)
        truth = self._truth.forward(dense)
        return replace(truth, fixed=self._truth.fixed(features)) if fixed else truth

    def forget(self, what: str) -> None:
        """Frees a truth that is not asked for again."""
        self._kept.pop(what, None)


@dataclass(frozen=True)
class _Context:
    bench: KernelBench
    facts: dict[str, Any]
    ceilings: Ceilings
    case: Case
    say: Say
    _unusable: set[tuple[str, str]] = field(default_factory=set)

    def measure(
        self, problem: Problem, op: str, against: list[Comparator], truths: _Truths
    ) -> list[Row]:
        """Gates and times one operation on one problem."""
        calls: dict[str, Callable[[], object]] = {}
        truth = None
        if op == "forward":
            truth = truths.cbsr(problem.features, fixed=_fixed_point(problem))
        for name in self.bench.implementations:
            call = _our_call(problem, op, name)
            self._gate_ours(problem, op, name, call, truths, truth)
            calls[name] = call
        del truth
        for other in against:
            if op in other.ops:
                call_of_other = self._gate_comparator(problem, op, other, truths)
                if call_of_other is not None:
                    calls[other.name] = call_of_other
        times = interleave(
            calls,
            device=self.bench.device,
            rounds=self.bench.rounds,
            budget_s=self.bench.budget_s,
        )
        return self._rows(problem, op, times)

    def _gate_ours(
        self,
        problem: Problem,
        op: str,
        name: str,
        call: Callable[[], object],
        truths: _Truths,
        truth: Expected | None,
    ) -> None:
        out = run_poisoned(call, self.bench.device, problem.grad.nbytes)
        where = f"{op} by {name} on {self.case.graph}, D = {problem.width}, k = {problem.k}"
        if op == "maxk":
            _check_selection(problem, out, where)
            return
        accuracy = _judge(problem, op, out, truths, truth)
        if not accuracy.passed:
            raise GateError(f"{where} is wrong ({accuracy}); nothing was timed")

    def _gate_comparator(
        self, problem: Problem, op: str, other: Comparator, truths: _Truths
    ) -> Callable[[], object] | None:
        """Returns the comparator's call, or None (and says why) where it cannot or must not run."""
        where = f"{other.name} {op} on {self.case.graph}, D = {problem.width}"
        reason = other.absent(problem, op)
        if reason is None:
            try:
                call = other.prepare(problem, op)
                out = run_poisoned(call, self.bench.device, problem.grad.nbytes)
                reason = self._refute(problem, op, other, out, truths)
            except (NotImplementedError, RuntimeError) as error:
                if isinstance(error, GateError):
                    raise
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if reason is None:
            return call
        if (other.name, reason) not in self._unusable:
            self._unusable.add((other.name, reason))
            self.say(f"not timed: {where}: {reason}")
        return None

    def _refute(
        self, problem: Problem, op: str, other: Comparator, out: object, truths: _Truths
    ) -> str | None:
        if op == "maxk":
            return None if _same_values(problem, out) else "it selects other values"
        truth = truths.get(other.operand) if op == "forward" else None
        accuracy = _judge(problem, op, out, truths, truth)
        if not other.depends_on_k:
            truths.forget(other.operand)
        return None if accuracy.passed else f"wrong ({accuracy})"

    def _rows(self, problem: Problem, op: str, times: dict[str, Timing]) -> list[Row]:
        rows = []
        for name, timing in times.items():
            own = name in self.bench.implementations
            count = (_OURS if own else _THEIRS)[op]
            moved = count(problem.size)
            ceiling = self.ceilings.of(op, problem, moved, dense=not own)
            row = Row(
                suite=self.bench.suite,
                op=op,
                implementation=name,
                graph=self.case.graph,
                nodes=problem.graph.num_src,
                edges=problem.graph.num_edges,
                width=problem.width,
                k=problem.k,
                dtype=str(self.bench.dtype).removeprefix("torch."),
                ms=timing.ms,
                ms_low=timing.low,
                ms_high=timing.high,
                gbps=moved.gbps(timing.ms),
                fraction=ceiling.ms / timing.ms,
                ceiling=ceiling.kind,
                rounds=len(timing.samples),
                **self.facts,
            )
            rows.append(row)
            if own:
                rows += [
                    _compare(row, other, times[other], timing)
                    for other in times
                    if other not in self.bench.implementations
                ]
        return rows


def _compare(row: Row, name: str, baseline: Timing, timing: Timing) -> Row:
    result = ratio(baseline, timing)
    return replace(
        row, against=name, ratio=result.value, ratio_low=result.low, ratio_high=result.high
    )


def _our_call(problem: Problem, op: str, name: str) -> Callable[[], object]:
    if op == "forward":
        return ours.forward(problem, name)
    if op == "backward":
        return ours.backward(problem, name)
    return ours.selection(problem.x, problem.k, name)


def _judge(
    problem: Problem, op: str, out: object, truths: _Truths, truth: Expected | None
) -> Accuracy:
    if not isinstance(out, Tensor):
        raise GateError(f"{op} must return a tensor, got {type(out).__name__}")
    dense = out if out.layout == torch.strided else out.to_dense()
    if op == "backward":
        truth = truths.get("backward")
        if dense.shape != truth.value.shape:
            truth = truth.gather(problem.features.columns.long())
    assert truth is not None
    return judge(dense, truth, problem.x.dtype)


def _fixed_point(problem: Problem) -> bool:
    """Whether the forward may hold its values as fixed-point words: on a GPU, without weights."""
    lower = torch.get_float32_matmul_precision() != "highest"
    return lower and problem.x.is_cuda and problem.graph.edge_weight is None


def _selected(out: object) -> tuple[Tensor, Tensor]:
    if isinstance(out, CBSR):
        return out.values, out.columns
    if not (isinstance(out, tuple) and len(out) == 2):
        raise GateError(f"maxk must return values and columns, got {type(out).__name__}")
    return out


def _same_selection(problem: Problem, out: object) -> bool:
    """Whether a selection holds the entries of the definition, in any order inside a row."""
    values, columns = _selected(out)
    expected_values, expected = reference.select(problem.x, problem.k)
    order = columns.long().argsort(dim=1)
    return bool(
        torch.equal(columns.long().gather(1, order), expected.long())
        and torch.equal(values.gather(1, order), expected_values)
    )


def _same_values(problem: Problem, out: object) -> bool:
    """Whether a selection holds the definition's values; of equal ones it may keep any columns."""
    values, _ = _selected(out)
    expected, _ = reference.select(problem.x, problem.k)
    return bool(torch.equal(values.sort(dim=1).values, expected.sort(dim=1).values))


def _check_selection(problem: Problem, out: object, where: str) -> None:
    if not _same_selection(problem, out):
        raise GateError(
            f"{where} is wrong (other entries than the definition's); nothing was timed"
        )


def _dense_rows(rows: list[Row]) -> list[Row]:
    """Our dense aggregation against the public one, from the times of one forward measurement."""
    alone = {r.implementation: r for r in rows if r.op == "forward" and r.against is None}
    if "best-dense" not in alone or "torch.sparse" not in alone:
        return []
    dense, public = alone["best-dense"], alone["torch.sparse"]
    own = replace(dense, op="spmm", implementation=ours.AUTO, k=None)
    return [own, replace(own, against="torch.sparse", ratio=public.ms / dense.ms)]
