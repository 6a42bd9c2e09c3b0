"""Whole training epochs: our MaxK network against what a user would run instead.

All contenders start from the same weights, train on the same graph in the same node order with the
same loss and optimiser, and run interleaved. Before that, loss and gradients of each are compared
with the plain network on ``torch.sparse`` in float64 (float32 where that does not fit), without
dropout and without TF32.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from maxk.bench.epochs import networks
from maxk.bench.epochs.networks import Plain
from maxk.bench.kernels.cases import Case
from maxk.bench.kernels.gate import GateError
from maxk.bench.models import MODELS, Network
from maxk.bench.show import Say
from maxk.bench.timing import Timed, new_pool, time_steps
from maxk.data.load import load
from maxk.data.synthetic import node_features
from maxk.graph.graph import Graph
from maxk.measure.record import Row, stamp
from maxk.measure.timer import ratio
from maxk.nn.functional import aligned
from maxk.train.step import Step, Target, captured

Call = Callable[[], object]
#: Makes a contender's module for its own copy of the graph, and says whether it is compiled.
Make = Callable[[Graph], tuple[nn.Module, bool]]

#: What ``against`` may name, the strongest first.
CONTENDERS = ("relu-compiled", "relu-eager", "pyg-csr", "topk-mask", "dgl")
#: Ours: what ``maxk train`` runs, on a GPU from a CUDA graph; plain eager; compiled, and on a GPU
#: from a CUDA graph.
IMPLEMENTATIONS = ("auto", "eager", "compiled")

#: Largest distance of a loss from the truth, and of each parameter's gradient as a share of its own
#: size. Selections that hang on the last bit of an entry go either way, so this is wider than the
#: kernels' gate.
LOSS_TOLERANCE, GRADIENT_TOLERANCE = 1e-3, 2e-2
#: The truth runs in float64 while its activations stay below this.
TRUTH_BYTES = 16 * 2**30

#: What DGL calls the parameters of its SAGE layer.
_DGL_NAMES = {
    "fc_neigh.weight": "lin_l.weight",
    "fc_self.weight": "lin_r.weight",
    "fc_self.bias": "lin_l.bias",
}


@dataclass(frozen=True)
class Task:
    """What is trained on: a graph with features and labels.

    Attributes:
        name: Of the graph, as rows carry it.
        graph: On the device that trains.
        x: [N, F] features, dense or sparse CSR.
        target: Labels of the training nodes.
        classes: Outputs of the network.
        hidden: D.
        layers: Graph convolutions.
    """

    name: str
    graph: Graph
    x: Tensor
    target: Target
    classes: int
    hidden: int
    layers: int


MakeTask = Callable[[], Task]


@dataclass(frozen=True)
class EpochBench:
    """What ``bench epoch`` runs.

    Attributes:
        suite: Name of the suite, as rows carry it.
        device: Where.
        ks: Kept entries; those above the hidden width are left out.
        models: Of ``sage``, ``gcn``, ``gin``.
        implementations: Of ours; ``auto`` by default.
        against: Of :data:`CONTENDERS`; all by default.
        dropout: Probability.
        norm: ``layer``, ``batch`` or None.
        rounds: Epochs of each contender that are timed, at most.
        budget_s: Seconds after which a timing stops, at three epochs or more.
    """

    suite: str
    device: torch.device
    ks: tuple[int, ...] = (16, 32, 64)
    models: tuple[str, ...] = ("sage",)
    implementations: tuple[str, ...] = ("auto",)
    against: tuple[str, ...] = ()
    dropout: float = 0.5
    norm: Any = "layer"
    rounds: int = 9
    budget_s: float = 60.0


def case_task(case: Case, hidden: int, device: torch.device, seed: int = 0) -> Task:
    """Returns the task of a suite's case: find the planted community from noisy features."""
    graph, communities = case.draw(device=device, seed=seed)
    x = aligned(node_features(replace(case.config, seed=seed), communities))
    nodes = torch.rand(graph.num_src, device=device).topk(max(1, graph.num_src * 2 // 3)).indices
    target = Target(nodes, communities[nodes])
    return Task(case.graph, graph, x, target, case.config.communities, hidden, case.layers)


def dataset_task(name: str, hidden: int, layers: int, device: torch.device) -> Task:
    """Returns the task of a data set, by name or path."""
    data = load(name, split=0)
    nodes = data.train_mask.nonzero()[:, 0].to(device)
    target = Target(nodes, data.y.to(device)[nodes])
    x, graph = aligned(data.x.to(device)), data.graph.to(device)
    return Task(data.name, graph, x, target, data.num_classes, hidden, layers)


def suite_tasks(
    chosen: Iterable[Case], device: torch.device, *, hidden: int | None, layers: int | None
) -> dict[str, MakeTask]:
    """Returns how to make the task of each case.

    Each is made when its turn comes: all graphs of a suite at once need tens of gigabytes.

    Args:
        chosen: The cases.
        device: Of the tasks.
        hidden: D; None is the last width of the case.
        layers: Graph convolutions; None is the case's.
    """
    tasks: dict[str, MakeTask] = {}
    for case in chosen:
        case = replace(case, layers=layers or case.layers)
        tasks[case.graph] = partial(case_task, case, hidden or case.widths[-1], device)
    return tasks


def dataset_tasks(
    names: Iterable[str], device: torch.device, *, hidden: int | None, layers: int | None
) -> dict[str, MakeTask]:
    """Returns how to make the task of each data set, by name or path; 3 layers of 256 if None."""
    return {name: partial(dataset_task, name, hidden or 256, layers or 3, device) for name in names}


def all_epochs(
    bench: EpochBench, tasks: Mapping[str, MakeTask], say: Say, limit_s: float | None = None
) -> Iterator[list[Row]]:
    """Yields the rows of every task; what is not begun within ``limit_s`` is said.

    Raises:
        GateError: As :func:`epochs`.
    """
    start = time.perf_counter()

    def is_late() -> bool:
        return limit_s is not None and time.perf_counter() - start > limit_s

    for name, make in tasks.items():
        if is_late():
            say(f"not begun within {limit_s:g} s: {name}")
            continue
        for rows in epochs(bench, make(), say):
            yield rows
            if is_late():
                break
        if bench.device.type == "cuda":
            # The next graph is larger or smaller: nothing of this one fits it.
            gc.collect()
            torch.cuda.empty_cache()
            torch.compiler.reset()


def epochs(bench: EpochBench, task: Task, say: Say) -> Iterator[list[Row]]:
    """Yields the rows of one (model, k) after the other.

    Args:
        bench: What to run.
        task: What to train on.
        say: Called with what is absent or failed, in words.

    Raises:
        GateError: Our network's loss or gradients are wrong; nothing of it is timed.
    """
    facts = stamp(bench.device)
    for model in bench.models:
        field = _Field(bench, task, model, facts, say)
        public = field.relu_contenders()
        for k in bench.ks:
            if k <= task.hidden:
                yield field.measure(k, public)


@dataclass(frozen=True)
class _Truth:
    """What loss and gradients must be.

    Attributes:
        loss: Mean over the training nodes.
        grads: By parameter, in float64.
        sizes: By parameter, how large its gradient may be called: its norm, and the norm that the
            nodes' gradients have before they cancel. The gradient of one number, such as GIN's
            eps, is a sum over all nodes that may come out near 0; its rounding does not.
    """

    loss: float
    grads: dict[str, Tensor]
    sizes: dict[str, float]


@dataclass(frozen=True)
class _Contender:
    """A call that runs one epoch, and what is known of it before it is timed."""

    call: Call
    step: Step
    peak: int | None


class _Field:
    """All contenders of one model on one task."""

    def __init__(
        self, bench: EpochBench, task: Task, model: str, facts: dict[str, Any], say: Say
    ) -> None:
        self.bench, self.task, self.model, self.facts, self.say = bench, task, model, facts, say
        self.reduce = MODELS[model].reduce
        self.relu = self._network("relu", 1)
        self._wanted = bench.against or CONTENDERS
        self._pool: Any = None

    def _network(self, nonlinearity: Any, k: int) -> Network:
        torch.manual_seed(0)
        network = MODELS[self.model].network(
            self.task.x.shape[1],
            self.task.hidden,
            self.task.layers,
            self.task.classes,
            k=k,
            nonlinearity=nonlinearity,
            dropout=self.bench.dropout,
            norm=self.bench.norm,
        )
        return network.to(self.bench.device)

    def _made(self, k: int, compiled: bool, _: Graph) -> tuple[nn.Module, bool]:
        return self._network("maxk", k), compiled

    def _open_pool(self) -> None:
        """New memory for the CUDA graphs made from here on, which live and die together."""
        self._pool = new_pool(self.bench.device)

    def relu_contenders(self) -> dict[str, _Contender]:
        """Returns those that do not depend on k, gated and warm."""
        truth = None
        self._open_pool()
        makers: dict[str, Make] = {
            "relu-compiled": lambda _: (self._network("relu", 1), True),
            "relu-eager": lambda _: (self._network("relu", 1), False),
            "pyg-csr": lambda graph: (networks.pyg(self.relu, graph), False),
            "dgl": lambda graph: (networks.dgl(self.relu, graph), False),
        }
        found = {}
        for name, make in makers.items():
            if name not in self._wanted:
                continue
            library = {"pyg-csr": "torch_geometric", "dgl": "dgl"}.get(name)
            if library is not None and importlib.util.find_spec(library) is None:
                self.say(f"not timed: {name}: {library} is not installed")
                continue
            truth = truth or self._truth(self.relu, torch.relu)
            contender = self._ready(name, make, truth)
            if contender is not None:
                found[name] = contender
        return found

    def measure(self, k: int, public: dict[str, _Contender]) -> list[Row]:
        """Gates ours and the masked recipe at one k, and times them together with the others."""
        self._open_pool()
        network = self._network("maxk", k)
        truth = self._truth(network, networks.mask_activation(k))
        ours: dict[str, _Contender] = {}
        for name in self.bench.implementations:
            make = partial(self._made, k, name == "compiled")
            contender = self._ready(name, make, truth, own=True)
            if contender is not None:
                ours[name] = contender
        others = dict(public)
        if "topk-mask" in self._wanted:
            mask = self._ready(
                "topk-mask", lambda graph: (networks.topk_mask(network, graph, k), False), truth
            )
            if mask is not None:
                others["topk-mask"] = mask
        del truth
        self._drop_those_that_do_not_fit(k, ours, others)
        if not ours:
            return []
        everyone = ours | others
        timed = time_steps(
            {name: contender.step for name, contender in everyone.items()},
            self.bench.device,
            rounds=self.bench.rounds,
            budget_s=self.bench.budget_s,
            calls={name: contender.call for name, contender in everyone.items()},
            parts=[name for name in everyone if self._is_split(name, ours)],
        )
        return self._rows(k, ours, others, timed)

    def _is_split(self, name: str, ours: dict[str, _Contender]) -> bool:
        """Whether the parts of a contender's step are recorded: eager steps of this package."""
        return name in ("eager", "relu-eager") or (name == "auto" and "eager" not in ours)

    def _drop_those_that_do_not_fit(self, k: int, *fields: dict[str, _Contender]) -> None:
        """Runs each while the others hold their memory, and leaves out those that do not fit."""
        for field in fields:
            for name in list(field):
                try:
                    field[name].call()
                    if self.bench.device.type == "cuda":
                        torch.cuda.synchronize(self.bench.device)
                except torch.OutOfMemoryError:
                    del field[name]
                    self._say_missing(name, f"out of memory beside the others at k = {k}")

    def _say_missing(self, name: str, reason: str) -> None:
        self.say(f"not timed: {name} {self.model} on {self.task.name}: {reason}")
        if self.bench.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()

    def _forward(self, module: nn.Module, graph: Graph) -> Callable[[], Tensor]:
        x = self.task.x
        if isinstance(module, Plain):
            return lambda: module(x)
        return lambda: module(x, graph)

    def _truth(self, network: Network, activation: Any) -> _Truth:
        task = self.task
        size = 10 * 8 * task.graph.num_src * task.hidden * (task.layers + 1)
        dtype = torch.float64 if size <= TRUTH_BYTES else torch.float32
        product = networks.sparse_product(task.graph, self.reduce, dtype)
        plain = Plain(network, product, activation).to(dtype)
        x = task.x.to(dtype)
        step = Step(plain, lambda: plain(x), task.target)
        with _precision("highest"):
            loss, found = step.gradients()
            grads, signed = _renamed(found), _renamed(step.gradients(signed=True)[1])
        sizes = {name: float(grads[name].norm() + signed[name].norm()) for name in grads}
        return _Truth(float(loss), grads, sizes)

    def _ready(
        self,
        name: str,
        make: Make,
        truth: _Truth,
        *,
        own: bool = False,
    ) -> _Contender | None:
        """Builds, gates and warms a contender; None, and says why, where a foreign one fails."""
        try:
            return self._prepare(name, make, truth)
        except torch.OutOfMemoryError:
            reason = "out of memory"
        except (GateError, RuntimeError, NotImplementedError, ImportError) as error:
            if own and isinstance(error, GateError):
                raise
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        # After the handler, whose traceback holds the contender's memory.
        self._say_missing(name, reason)
        return None

    def _prepare(
        self,
        name: str,
        make: Make,
        truth: _Truth,
    ) -> _Contender:
        device = self.bench.device
        cuda = device.type == "cuda"
        before = torch.cuda.memory_allocated(device) if cuda else 0
        graph = _fresh(self.task.graph)
        module, compiled = make(graph)
        step = Step(module, self._forward(module, graph), self.task.target)
        with _precision("highest"):
            _check(f"{name} {self.model} on {self.task.name}", step.gradients(), truth)
        if compiled:
            graph.prepare(self.reduce)
            # Each graph has its own compiled code: sizes left open make slower kernels.
            fast: Any = torch.compile(module, dynamic=False)
            step = Step(module, self._forward(fast, graph), self.task.target)
        call: Call = step
        step()
        if cuda:
            torch.cuda.reset_peak_memory_stats(device)
        step()
        peak = None
        if cuda:
            peak = torch.cuda.max_memory_allocated(device) - before + _nbytes(self.task)
            if compiled or name == "auto":
                call = captured(step, device, self._pool)
        return _Contender(call, step, peak)

    def _rows(
        self,
        k: int,
        ours: dict[str, _Contender],
        others: dict[str, _Contender],
        timed: dict[str, Timed],
    ) -> list[Row]:
        task = self.task
        rows = []
        for name, contender in (ours | others).items():
            timing = timed[name].timing
            row = Row(
                suite=self.bench.suite,
                op="epoch",
                implementation=name,
                graph=task.name,
                nodes=task.graph.num_src,
                edges=task.graph.num_edges,
                width=task.hidden,
                k=k if name in ours or name == "topk-mask" else None,
                dtype="float32",
                ms=timing.ms,
                ms_low=timing.low,
                ms_high=timing.high,
                rounds=len(timing.samples),
                model=self.model,
                layers=task.layers,
                peak_memory=contender.peak,
                split=timed[name].parts,
                **self.facts,
            )
            rows.append(row)
            if name in ours:
                for other in others:
                    result = ratio(timed[other].timing, timing)
                    rows.append(
                        replace(
                            row,
                            against=other,
                            ratio=result.value,
                            ratio_low=result.low,
                            ratio_high=result.high,
                            split=None,
                        )
                    )
        return rows


@contextlib.contextmanager
def _precision(word: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(word)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _fresh(graph: Graph) -> Graph:
    """The same edges without what has been built from them, so that memory is counted once."""
    indptr, indices = graph.indptr, graph.indices
    return Graph.from_csr(
        indptr.view_as(indptr), indices.view_as(indices), graph.weight, graph.num_src
    )


def _nbytes(task: Task) -> int:
    """Bytes that all contenders share: features and edges."""
    x, graph = task.x, task.graph
    features = x.nbytes if x.layout == torch.strided else x.values().nbytes + x.col_indices().nbytes
    return features + graph.indptr.nbytes + graph.indices.nbytes


def _check(where: str, found: tuple[Tensor, dict[str, Tensor]], truth: _Truth) -> None:
    """Compares the loss, and each gradient by name at its own size."""
    loss = float(found[0])
    if not abs(loss - truth.loss) <= LOSS_TOLERANCE * abs(truth.loss):
        raise GateError(f"{where} is wrong: loss {loss:.6g}, expected {truth.loss:.6g}")
    grads = _renamed(found[1])
    if grads.keys() != truth.grads.keys():
        raise GateError(
            f"{where} has other parameters: {sorted(grads.keys() ^ truth.grads.keys())}"
        )
    for name, expected in truth.grads.items():
        size = truth.sizes[name]
        distance = float((grads[name] - expected).norm())
        error = distance / size if size else distance
        if not error <= GRADIENT_TOLERANCE:
            raise GateError(
                f"{where} is wrong: gradients differ by {error:.1e} at {name}, "
                f"allowed {GRADIENT_TOLERANCE:.0e}"
            )


def _renamed(grads: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients under the names that the network itself gives its parameters, in float64."""
    found = {}
    for name, grad in grads.items():
        own = name.removeprefix("network.")
        for others, ours in _DGL_NAMES.items():
            own = own.replace(others, ours)
        found[own] = grad.double()
    return found
