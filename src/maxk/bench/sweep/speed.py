"""How long an epoch of each setting takes, alone on the device and interleaved with ReLU's."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import fields

import torch
from torch import Tensor

from maxk.bench.sweep.jobs import Job
from maxk.bench.sweep.score import Setting, Speed
from maxk.bench.timing import new_pool, replayed, time_steps
from maxk.core.errors import TrainingError
from maxk.data.dataset import Dataset
from maxk.graph import cache
from maxk.measure.environment import environment
from maxk.measure.timer import ratio
from maxk.train.config import TrainConfig
from maxk.train.isolation import numerics
from maxk.train.setup import build_model
from maxk.train.step import Step, Target

#: Steps of ReLU whose operations are timed one by one, for the share of aggregation.
SPLITS = 5


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
    pool = new_pool(device)
    sparse = dataset.x.layout != torch.strided
    held = cache.unchanged(dataset.x) if sparse else contextlib.nullcontext()
    with held, numerics(relu.config):
        steps = {job.setting: _step(job.config, dataset) for job in jobs}
        calls = {setting: replayed(step, device, pool) for setting, step in steps.items()}
        timed = time_steps(
            steps, device, rounds=rounds, budget_s=budget_s, calls=calls, warmup=2,
            parts=[relu.setting], splits=SPLITS,
        )  # fmt: skip
    base = timed[relu.setting]
    assert base.parts is not None
    highest = ceiling(base.parts)
    found = []
    for job in jobs:
        timing = timed[job.setting].timing
        gain = ratio(base.timing, timing)
        found.append(
            Speed(
                **{f.name: getattr(job.setting, f.name) for f in fields(Setting)},
                ms=timing.ms,
                ms_low=timing.low,
                ms_high=timing.high,
                ratio=gain.value,
                ratio_low=gain.low,
                ratio_high=gain.high,
                ceiling=highest,
                rounds=len(timing.samples),
                **{
                    name: facts[name]
                    for name in ("device", "machine", "threads", "torch", "commit", "date")
                },
            )
        )
    return found


def ceiling(parts: Mapping[str, float]) -> float:
    """Returns Amdahl's ceiling: a step over the same step without aggregation.

    Args:
        parts: Milliseconds, as :meth:`maxk.train.step.Step.split` names them.
    """
    whole = sum(parts.values())
    return whole / (whole - parts["forward"] - parts["backward"])


def _step(config: TrainConfig, dataset: Dataset) -> Step:
    torch.manual_seed(0)
    model = build_model(config, dataset).to(dataset.y.device)
    nodes = dataset.train_mask.nonzero()[:, 0]

    def forward() -> Tensor:
        logits: Tensor = model(dataset.x, dataset.graph)
        return logits

    step = Step(model, forward, Target(nodes, dataset.y[nodes]))
    step()
    return step
