"""Runs -> scores: in this process, or in several that hand child_end back one by one.

A worker trains many runs one after the other: interpreter, kernels, data set and graph are there
from the second on. Only the parent writes, so a worker that is killed takes one run with it.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from multiprocessing import connection, get_context
from typing import Any

import torch

from maxk.bench.sweep.jobs import Job
from maxk.bench.sweep.score import Score, Setting
from maxk.core.errors import DataError, MaxKError
from maxk.data.dataset import Dataset
from maxk.data.load import assemble, open_source
from maxk.data.resplit import with_split
from maxk.data.source import Source
from maxk.measure.environment import environment
from maxk.train.config import TrainConfig
from maxk.train.deferred import DeferredTrainer
from maxk.train.setup import resolve_device


@dataclass(frozen=True)
class Lost:
    """A run whose worker ended before it did.

    Attributes:
        job: The run.
        exitcode: Of the process; negative is the number of a signal.
    """

    job: Job
    exitcode: int | None


class Runner:
    """Trains runs one after the other and keeps the last graph between them.

    Args:
        workers: Processes that train at a time, as rows record it.
    """

    def __init__(self, workers: int = 1) -> None:
        self._workers = workers
        self._facts: dict[str, Any] | None = None
        self._loaded: tuple[tuple[object, ...], Source, Dataset] | None = None

    def score(self, job: Job) -> Score:
        """Trains one run.

        Raises:
            MaxKError: the data, the settings or the device do not allow it.
        """
        config = job.config
        device = resolve_device(config.device)
        if self._facts is None:
            facts = environment(device)
            self._facts = {name: facts[name] for name in ("device", "torch", "commit", "date")}
        split, dataset = self.dataset(config)
        outcome = DeferredTrainer(config, dataset).run()
        if device.type == "cuda":
            # Memory of a CUDA graph that is gone, which the other workers may need.
            torch.cuda.empty_cache()
        result = asdict(outcome)
        return Score(
            **{f.name: getattr(job.setting, f.name) for f in fields(Setting)},
            seed=config.seed,
            split=split,
            metric=dataset.metric,
            hidden=config.hidden,
            layers=config.layers,
            workers=self._workers,
            **result,
            **self._facts,
        )

    def dataset(self, config: TrainConfig) -> tuple[int, Dataset]:
        """The number of a run's split, and its data set on the device that trains.

        Of several splits that the recipe does not choose from, seed s takes split s.
        """
        device = resolve_device(config.device)
        names = ("dataset", "features", "labels", "undirected", "self_loops", "scaling")
        key = (*(getattr(config, name) for name in names), device)
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = None  # one graph's memory at a time
            source = open_source(config.dataset, config.features, config.labels)
            split = _split(config, source)
            whole = assemble(
                source,
                undirected=config.undirected,
                self_loops=config.self_loops,
                split=split,
                seed=config.seed,
                scaling=config.scaling,
            )
            self._loaded = key, source, whole.to(device)
        _, source, whole = self._loaded
        split = _split(config, source)
        number = (split or 0) if source.masks else config.seed
        return number, with_split(whole, source, split=split, seed=config.seed)


def _split(config: TrainConfig, source: Source) -> int | None:
    if isinstance(config.split, int):
        return config.split
    several = any(mask.ndim == 2 and mask.shape[1] > 1 for mask in source.masks.values())
    return config.seed if several or config.split == "seed" else None


def work(jobs: Iterable[Job], workers: int) -> Iterator[Score | Lost]:
    """Yields the score of every run as it comes, in any order.

    Args:
        jobs: The runs.
        workers: Processes; 1 trains in this one.

    Raises:
        MaxKError: a run is not possible; what was yielded before is valid.
    """
    waiting = deque(jobs)
    if workers == 1:
        runner = Runner()
        for job in waiting:
            yield runner.score(job)
        return
    crew = [_Worker(workers) for _ in range(min(workers, len(waiting)))]
    try:
        for worker in crew:
            worker.take(waiting.popleft())
        while busy := [worker for worker in crew if worker.job is not None]:
            for ready in connection.wait([worker.pipe for worker in busy]):
                worker = next(worker for worker in busy if worker.pipe is ready)
                result = worker.result()
                if isinstance(result, Lost):
                    worker.end()
                    crew.remove(worker)
                    if waiting:
                        crew.append(worker := _Worker(workers))
                if waiting:
                    worker.take(waiting.popleft())
                yield result
    finally:
        for worker in crew:
            worker.end()


class _Worker:
    """A process that trains one run at a time, and the run that it is at."""

    def __init__(self, workers: int) -> None:
        # A forked child cannot use a GPU that its parent has touched.
        context = get_context("spawn")
        self.pipe, child_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(child_end, workers), daemon=True)
        self._process.start()
        child_end.close()
        self.job: Job | None = None

    def take(self, job: Job) -> None:
        self.job = job
        # A worker that is gone already shows when its result is read.
        try:
            self.pipe.send(job)
        except (BrokenPipeError, ConnectionResetError):
            return

    def result(self) -> Score | Lost:
        assert self.job is not None
        job, self.job = self.job, None
        try:
            kind, value = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            return Lost(job, self._process.exitcode)
        if kind == "refused":
            raise DataError(value)
        if kind == "failed":
            raise RuntimeError(
                f"a worker failed at {job.setting}, seed {job.config.seed}:\n{value}"
            )
        assert isinstance(value, Score)
        return value

    def end(self) -> None:
        self.pipe.close()
        if self.job is not None:
            self._process.terminate()
        self._process.join()


def _serve(pipe: connection.Connection, workers: int) -> None:
    """The life of a worker: runs in, scores out, until the parent closes the pipe."""
    # Ctrl-C reaches all processes of a terminal; the parent is the one that ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    runner = Runner(workers)
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        answer: tuple[str, object]
        try:
            answer = "done", runner.score(job)
        except MaxKError as error:
            answer = "refused", str(error)
        except Exception:
            answer = "failed", traceback.format_exc()
        pipe.send(answer)
