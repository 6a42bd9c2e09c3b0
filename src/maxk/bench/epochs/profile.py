"""Whether MaxK pays on one graph: where an epoch's time goes, what is possible, what is reached.

With a share s of a ReLU epoch in aggregation, no change to aggregation can make the epoch more than
1 / (1 - s) times faster (Amdahl). Between this ceiling and 1 two numbers are shown for each k: what
the operations promise when they are timed alone, and what whole epochs reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from maxk.bench.kernels import ours
from maxk.bench.kernels.problem import Problem, random_matrix
from maxk.bench.models import MODELS
from maxk.bench.timing import Timed, new_pool, replayed, time_steps
from maxk.core.errors import ConfigError
from maxk.data.dataset import Dataset
from maxk.data.describe import ModelShape, estimate_memory, look_up
from maxk.measure.environment import device_name
from maxk.measure.memory import added_memory
from maxk.measure.timer import interleave, ratio
from maxk.ops.maxk.op import maxk
from maxk.train.config import TrainConfig
from maxk.train.isolation import numerics
from maxk.train.setup import build_model, resolve_device
from maxk.train.step import Step, Target

DEFAULT_KS = (8, 16, 32, 64, 96, 128)
#: Parts of an epoch, in the order of the picture's bars.
PARTS = ("select", "forward", "backward", "rest")

#: Classes of a graph that comes without labels.
STAND_IN_CLASSES = 10

#: A smaller gain than this is not worth another nonlinearity.
WORTH = 1.05
#: Recommended is every k that reaches this share of the best gain: the largest of them keeps most.
GAIN_SHARE = 0.5


@dataclass(frozen=True)
class EpochProfile:
    """One nonlinearity's epoch.

    Attributes:
        k: Kept entries; None for ReLU.
        ms: Median of a whole epoch.
        ms_low: 20th percentile.
        ms_high: 80th percentile.
        parts: Milliseconds of ``select`` (MaxK and its backward), ``forward`` and ``backward``
            (aggregation), and ``rest``.
        memory: Bytes: graph, features, weights with their moments, and the most that a step holds.
        predicted: Times faster than ReLU by the operations timed alone; None for ReLU.
        achieved: Times faster than ReLU by whole epochs; None for ReLU.
        achieved_low: 20th percentile of the ratios of single rounds.
        achieved_high: 80th percentile of the same.
    """

    k: int | None
    ms: float
    ms_low: float
    ms_high: float
    parts: dict[str, float]
    memory: int
    predicted: float | None = None
    achieved: float | None = None
    achieved_low: float | None = None
    achieved_high: float | None = None

    @property
    def label(self) -> str:
        """``ReLU``, or the k."""
        return "ReLU" if self.k is None else f"k = {self.k}"


@dataclass(frozen=True)
class Profile:
    """What MaxK does for one graph and model.

    Attributes:
        dataset: Name.
        nodes: N.
        edges: E.
        model: ``sage``, ``gcn`` or ``gin``.
        hidden: D.
        layers: Graph layers.
        device: ``cpu``, or the GPU's name.
        precision: torch's word for float32 products.
        relu: The dense epoch.
        maxk: One epoch a k.
        share: Part of the ReLU epoch that is aggregation.
        ceiling: Times faster that an epoch without aggregation would be.
        recommended: Smallest and largest k to use, or None where MaxK will not pay.
        advice: The same in words, with the reason.
    """

    dataset: str
    nodes: int
    edges: int
    model: str
    hidden: int
    layers: int
    device: str
    precision: str
    relu: EpochProfile
    maxk: tuple[EpochProfile, ...]
    share: float
    ceiling: float
    recommended: tuple[int, int] | None
    advice: str

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        return asdict(self)

    @property
    def title(self) -> str:
        """What was measured, in a line."""
        return (
            f"{self.dataset}: {self.nodes:,} nodes, {self.edges:,} edges; {self.model}, "
            f"{self.layers} layers of {self.hidden}, on {self.device}, precision {self.precision}"
        )


def profile(
    config: TrainConfig,
    dataset: Dataset,
    ks: Sequence[int] = DEFAULT_KS,
    *,
    rounds: int = 5,
    budget_s: float = 30.0,
) -> Profile:
    """Measures whole epochs and their operations with ReLU and with MaxK at each k.

    Args:
        config: Model, widths, dropout, norm, device and precision; its ``k`` and ``nonlinearity``
            play no part.
        dataset: Loaded; what is trained on.
        ks: Kept entries; those above the hidden width are left out.
        rounds: Epochs of each that are timed, at most.
        budget_s: Seconds after which epochs are no longer timed, at two rounds or more.

    Raises:
        ConfigError: No k is at most the hidden width.

    Example:
        >>> from maxk.data.load import load
        >>> config = TrainConfig(hidden=16, k=4, layers=1, device="cpu")
        >>> found = profile(config, load("digits"), ks=(4,), rounds=1)
        >>> 0 < found.share < 1 < found.ceiling
        True
    """
    wanted = sorted({k for k in ks if k <= config.hidden})
    if not wanted:
        raise ConfigError(f"--k must hold a k up to --hidden {config.hidden}, got {tuple(ks)}")
    device = resolve_device(config.device)
    data = dataset.to(device)
    data.graph.prepare(MODELS[config.model].reduce)
    with numerics(config):
        field = _Field(config, data, device)
        alone = {k: field.alone(k) for k in (None, *wanted)}
        contenders = {k: field.contender(k) for k in (None, *wanted)}
        pool = new_pool(device)
        steps = {k: contender.step for k, contender in contenders.items()}
        calls = {k: replayed(step, device, pool) for k, step in steps.items()}
        timed = time_steps(
            steps, device, rounds=rounds, budget_s=budget_s, calls=calls, parts=steps, least=2,
            # Counting memory has run a step on a CPU; on a GPU the first replay is slow.
            warmup=2 if device.type == "cuda" else 0,
        )  # fmt: skip
    times = {k: found.timing for k, found in timed.items()}
    relu = EpochProfile(
        None,
        times[None].ms,
        times[None].low,
        times[None].high,
        _parts(timed[None]),
        field.static(None) + contenders[None].added,
    )
    rest = relu.ms - alone[None]
    rows = []
    for k in wanted:
        reached = ratio(times[None], times[k])
        row = EpochProfile(
            k,
            times[k].ms,
            times[k].low,
            times[k].high,
            _parts(timed[k]),
            field.static(k) + contenders[k].added,
            predicted=relu.ms / max(rest + alone[k], 1e-3 * relu.ms),
            achieved=reached.value,
            achieved_low=reached.low,
            achieved_high=reached.high,
        )
        rows.append(row)
    share = min((relu.parts["forward"] + relu.parts["backward"]) / relu.ms, 0.999)
    recommended = recommend(rows)
    return Profile(
        dataset=data.name,
        nodes=data.graph.num_dst,
        edges=data.graph.num_edges,
        model=config.model,
        hidden=config.hidden,
        layers=config.layers,
        device=device_name(device),
        precision=config.precision,
        relu=relu,
        maxk=tuple(rows),
        share=share,
        ceiling=1 / (1 - share),
        recommended=recommended,
        advice=advice(relu, rows, share, recommended),
    )


def profile_data(config: TrainConfig) -> Dataset:
    """Loads what the settings name; a bare graph gets random features and labels, which cost alike.

    Raises:
        DataError: It is unknown, missing or broken.
    """
    name, data = look_up(
        config.dataset,
        features=config.features,
        labels=config.labels,
        undirected=config.undirected,
        self_loops=config.self_loops,
        split=config.seed if config.split == "seed" else config.split,
        seed=config.seed,
        scaling=config.scaling,
    )
    if isinstance(data, Dataset):
        return data
    nodes = data.num_dst
    every = torch.ones(nodes, dtype=torch.bool)
    labels = torch.arange(nodes) % STAND_IN_CLASSES
    features = torch.randn(nodes, config.hidden)
    return Dataset(name, data, features, labels, every, every, every, STAND_IN_CLASSES, "accuracy")


def recommend(rows: Sequence[EpochProfile]) -> tuple[int, int] | None:
    """Returns the smallest and largest k to use, or None where no k gains beyond the spread."""
    gains = {
        row.k: row.achieved
        for row in rows
        if row.k is not None
        and row.achieved is not None
        and row.achieved >= WORTH
        and (row.achieved_low or 0) > 1
    }
    if not gains:
        return None
    least = 1 + GAIN_SHARE * (max(gains.values()) - 1)
    good = [k for k, achieved in gains.items() if achieved >= least]
    return min(good), max(good)


def advice(
    relu: EpochProfile,
    rows: Sequence[EpochProfile],
    share: float,
    recommended: tuple[int, int] | None,
) -> str:
    """Returns the recommendation and its reason, in words."""
    ceiling = 1 / (1 - share)
    if recommended is None:
        best = max(rows, key=lambda row: row.achieved or 0)
        reason = (
            f"aggregation is {share:.0%} of an epoch, so no aggregation can make it more than "
            f"{ceiling:.2f} times faster"
            if ceiling < 1.25
            else f"aggregation is {share:.0%} of an epoch, but what MaxK saves there it spends "
            "elsewhere"
        )
        return (
            f"MaxK will not pay here: the best, {best.label}, reaches {best.achieved:.2f} times "
            f"the speed of ReLU; {reason}."
        )
    low, high = recommended
    chosen = [row for row in rows if row.k is not None and low <= row.k <= high]
    speeds = sorted(row.achieved or 0.0 for row in chosen)
    largest = chosen[-1]
    words = f"k = {low}" if low == high else f"k from {low} to {high}"
    gain = (
        f"{speeds[0]:.2f}" if len(speeds) == 1 else f"{speeds[0]:.2f} to {speeds[-1]:.2f}"
    ) + " times as fast as ReLU"
    memory = 1 - largest.memory / relu.memory
    less = f"{memory:.0%} less" if memory >= 0 else f"{-memory:.0%} more"
    above = (
        f"; free aggregation alone would give {ceiling:.2f} times, the rest of the gain is MaxK's "
        "smaller dropout and backward"
        if speeds[-1] > ceiling
        else f"; the ceiling is {ceiling:.2f} times"
    )
    return (
        f"Use {words}: {gain}, with {less} memory at k = {largest.k}{above}. "
        "The largest k of the range keeps the most of each row: start there, and compare the "
        "scores of maxk train with both nonlinearities."
    )


@dataclass(frozen=True)
class _Contender:
    step: Step
    added: int


class _Field:
    """One model on one data set, with any nonlinearity."""

    def __init__(self, config: TrainConfig, data: Dataset, device: torch.device) -> None:
        self.config, self.data, self.device = config, data, device
        nodes = data.train_mask.nonzero()[:, 0]
        self.target = Target(nodes, data.y[nodes])

    def alone(self, k: int | None) -> float:
        """Milliseconds of all layers' MaxK and aggregation, each operation timed by itself."""
        graph, width = self.data.graph, self.config.hidden
        x = random_matrix(graph.num_src, width, graph, torch.float32)
        grad = random_matrix(graph.num_dst, width, graph, torch.float32)
        features = maxk(x, k or 1)
        problem = Problem(graph, MODELS[self.config.model].reduce, x, grad, features)
        calls: dict[str, Callable[[], object]]
        if k is None:
            calls = {"forward": ours.dense_forward(problem), "back": ours.dense_backward(problem)}
        else:
            calls = {
                "select": ours.selection(x, k),
                "forward": ours.forward(problem),
                "back": ours.backward(problem),
            }
        times = interleave(calls, device=self.device, rounds=3, warmup=1, cold=False)
        return self.config.layers * sum(timing.ms for timing in times.values())

    def contender(self, k: int | None) -> _Contender:
        """Returns the step, warm, and what it holds beyond its data and weights."""
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(self.config.seed)
            model = build_model(self._settings(k), self.data).to(self.device)
        step = Step(model, self._forward(model), self.target)
        if self.device.type == "cuda":
            step()  # kernels are compiled and matrices made here, before memory is counted
        added = added_memory(step, self.device)
        model.zero_grad(set_to_none=True)
        return _Contender(step, added)

    def static(self, k: int | None) -> int:
        """Bytes of graph, features, weights and moments: what is there before a step."""
        config = self.config
        shape = ModelShape(config.model, "relu" if k is None else "maxk", layers=0, hidden=1, k=1)
        bare = estimate_memory(self.data, shape, device=self.device.type)
        model = build_model(self._settings(k), self.data)
        return bare + 12 * sum(p.numel() for p in model.parameters())

    def _settings(self, k: int | None) -> TrainConfig:
        if k is None:
            return replace(self.config, nonlinearity="relu")
        return replace(self.config, nonlinearity="maxk", k=k)

    def _forward(self, model: nn.Module) -> Callable[[], torch.Tensor]:
        x, graph = self.data.x, self.data.graph
        return lambda: model(x, graph)


def _parts(timed: Timed) -> dict[str, float]:
    """Select, forward and backward as measured, and what an epoch has beyond them."""
    assert timed.parts is not None
    parts = {name: timed.parts[name] for name in PARTS[:-1]}
    return {**parts, "rest": max(timed.timing.ms - sum(parts.values()), 0.0)}
