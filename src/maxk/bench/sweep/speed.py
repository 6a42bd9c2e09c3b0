"""How long an epoch of each setting takes, alone on the device and interleaved with ReLU's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from maxk.bench.step import Step, Target, captured
from maxk.bench.sweep.jobs import Job
from maxk.bench.sweep.score import Setting, Speed
from maxk.core.errors import TrainingError
from maxk.data.dataset import Dataset
from maxk.graph import cache
from maxk.graph.graph import Graph
from maxk.measure.environment import environment
from maxk.measure.timer import interleave, ratio
from maxk.ops import dispatch
from maxk.train.config import TrainConfig
from maxk.train.setup import build_model, numerics

#: The same step on the same nodes without edges: what no aggregation could be faster than.
_FLOOR = "without edges"


def speeds(
    jobs: Sequence[Job], dataset: Dataset, *, rounds: int = 15, budget_s: float = 20.0
) -> list[Speed]:
    """Times a training step of each setting of one model on one data set.

    On a GPU every step is replayed from a CUDA graph, as :mod:`maxk.train` does.

    Args:
        jobs: The settings, ReLU's among them.
        dataset: On the device.
        rounds: Steps of each that are timed, at most.
        budget_s: Seconds after which the timing stops, at three rounds or more.

    Raises:
        TrainingError: ReLU is not among the settings.
    """
    relu = next((job for job in jobs if job.setting.nonlinearity == "relu"), None)
    if relu is None:
        raise TrainingError("a speed-up is over ReLU, and no setting is ReLU's")
    device = dataset.y.device
    facts = environment(device)
    pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
    sparse = dataset.x.layout != torch.strided
    held = cache.unchanged(dataset.x) if sparse else contextlib.nullcontext()
    with held, numerics(relu.config):
        calls: dict[Any, Callable[[], object]] = {
            job.setting: _call(job.config, dataset, dataset.graph, pool) for job in jobs
        }
        none = torch.empty(2, 0, dtype=torch.int64, device=device)
        bare = Graph.from_edge_index(none, dataset.graph.num_dst)
        calls[_FLOOR] = _call(relu.config, dataset, bare, pool)
        times = interleave(
            calls, device=device, rounds=rounds, warmup=2, cold=False, budget_s=budget_s
        )
    base = times[relu.setting]  # type: ignore[index]
    found = []
    for job in jobs:
        timing = times[job.setting]  # type: ignore[index]
        gain = ratio(base, timing)
        found.append(
            Speed(
                **{f.name: getattr(job.setting, f.name) for f in fields(Setting)},
                ms=timing.ms,
                ms_low=timing.low,
                ms_high=timing.high,
                ratio=gain.value,
                ratio_low=gain.low,
                ratio_high=gain.high,
                ceiling=ratio(base, times[_FLOOR]).value,
                rounds=len(timing.samples),
                **{
                    name: facts[name]
                    for name in ("device", "machine", "threads", "torch", "commit", "date")
                },
            )
        )
    return found


def _call(config: TrainConfig, dataset: Dataset, graph: Graph, pool: Any) -> Callable[[], object]:
    torch.manual_seed(0)
    device = dataset.y.device
    model = build_model(config, dataset).to(device)
    nodes = dataset.train_mask.nonzero()[:, 0]

    def forward() -> Tensor:
        logits: Tensor = model(dataset.x, graph)
        return logits

    step = Step(model, forward, Target(nodes, dataset.y[nodes]))
    step()
    if device.type == "cuda" and dispatch.cuda_problem(device) is None:
        return captured(step, device, pool)
    return step
