"""A run that nobody watches: no number leaves the device before the last epoch.

A watched epoch waits for the device several times, for the loss and for each score; on a small
graph that takes longer than the epoch. Here step, prediction and scores of an epoch are one CUDA
graph that writes a line of a table, and the table is read once. The numbers are those of
:class:`~maxk.train.loop.Trainer`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from maxk.cbsr import CBSR
from maxk.core.errors import DataError, TrainingError
from maxk.graph import cache
from maxk.nn.nonlinearities import Activation
from maxk.ops import dispatch
from maxk.train import advice, metrics
from maxk.train.config import TrainConfig
from maxk.train.loop import Trainer
from maxk.train.setup import k_at, set_k
from maxk.train.step import Captured

#: Epochs that run before one is recorded: kernels are compiled and moments made in the first.
_EAGER = 2
_LOSS, _VAL, _TEST, _FINITE = range(4)


@dataclass(frozen=True)
class Outcome:
    """What is left of an unwatched run.

    Attributes:
        epochs: Epochs that count: all, or those until ``patience`` ran out.
        best_epoch: The first with the best validation score, counted from 1; None if it diverged.
        val: Its validation score; None if the run diverged.
        test: Its test score; None if the run diverged.
        test_last: Test score of the last epoch; None if the run diverged.
        diverged: The epoch whose loss or prediction was not finite, or None.
        kept: Mean share of entries behind the nonlinearity that are stored (MaxK) or not 0.
        seconds_per_epoch: Mean over all epochs, scores included.
    """

    epochs: int
    best_epoch: int | None
    val: float | None
    test: float | None
    test_last: float | None
    diverged: int | None
    kept: float
    seconds_per_epoch: float


class DeferredTrainer(Trainer):
    """Trains as :class:`~maxk.train.loop.Trainer` does and tells the result at the end.

    Args:
        config: The settings; ``compile`` plays no part here.
        dataset: A loaded data set; by default the one that ``config`` names.

    Example:
        >>> from maxk.train.config import TrainConfig
        >>> outcome = DeferredTrainer(TrainConfig(hidden=64, k=8, epochs=30)).run()
        >>> outcome.test > 0.8, outcome.kept
        (True, 0.125)
    """

    def run(self) -> Outcome:
        """Trains from the first epoch to the last.

        Raises:
            TrainingError: the memory of the device is too small.
            DataError: a score is not defined on a split.
        """
        if self.dataset.evaluator is not None:
            return self._watched()
        config, cuda = self.config, self.device.type == "cuda"
        table = torch.zeros(config.epochs, 4, dtype=torch.float64, device=self.device)
        line = torch.zeros(1, dtype=torch.int64, device=self.device)

        def epoch() -> Tensor:
            loss = self._step()
            logits = self._predict()
            scores = [
                metrics.score_on_device(
                    self.dataset.metric,
                    logits.index_select(0, self._nodes[name]),
                    self._labels[name],
                )
                for name in ("val", "test")
            ]
            row = torch.stack([loss.double(), *scores, logits.isfinite().all().double()])
            table.index_copy_(0, line, row[None])
            line.add_(1)
            return table

        memory = advice.within_memory(config, self.dataset, self.device)
        sparse = self.dataset.x.layout != torch.strided
        held = cache.unchanged(self.dataset.x) if sparse else contextlib.nullcontext()
        with memory, held, self._isolated():
            start = self._clock()
            call: Callable[[], Tensor] = epoch
            done = warm = 0
            while done < config.epochs:
                if config.anneal and set_k(self.model, k_at(config, done + 1)):
                    call, warm = epoch, 0
                if cuda and warm == _EAGER and self._may_capture():
                    call = Captured(epoch, self.device, torch.cuda.graph_pool_handle())
                call()
                done += 1
                warm += 1
                if config.patience and done % config.patience == 0:
                    stop = _stalled(table[:done].tolist(), config)
                    if stop is not None:
                        break
            lines = table[:done].tolist()
            seconds = (self._clock() - start) / done
            kept = self._kept()
        return self._outcome(lines, kept, seconds)

    def _watched(self) -> Outcome:
        """The same for scores that somebody else's code takes, which is no code for the device."""
        start = self._clock()
        diverged = None
        try:
            self.fit()
        except TrainingError as error:
            if error.__cause__ is not None:
                raise
            diverged = self.epoch + 1
        seconds = (self._clock() - start) / max(self.epoch, 1)
        with self._isolated():
            kept = self._kept()
        if diverged is not None or self.best is None:
            return Outcome(self.epoch, None, None, None, None, diverged, kept, seconds)
        best, last = self.best, self.history[-1].test
        return Outcome(self.epoch, best.epoch, best.val, best.test, last, None, kept, seconds)

    def _may_capture(self) -> bool:
        return self.config.cuda_graph and dispatch.cuda_problem(self.device) is None

    def _outcome(self, lines: list[list[float]], kept: float, seconds: float) -> Outcome:
        stop = _stalled(lines, self.config) if self.config.patience else None
        lines = lines[:stop]
        for epoch, line in enumerate(lines, start=1):
            if not (line[_FINITE] and abs(line[_LOSS]) < float("inf")):
                return Outcome(len(lines), None, None, None, None, epoch, kept, seconds)
        if any(line[_VAL] != line[_VAL] or line[_TEST] != line[_TEST] for line in lines):
            raise DataError(
                f"{self.dataset.name}: ROC AUC needs a positive and a negative node in each split"
            )
        best = max(range(self.config.anneal, len(lines)), key=lambda e: lines[e][_VAL])
        return Outcome(
            epochs=len(lines),
            best_epoch=best + 1,
            val=lines[best][_VAL],
            test=lines[best][_TEST],
            test_last=lines[-1][_TEST],
            diverged=None,
            kept=kept,
            seconds_per_epoch=seconds,
        )

    def _kept(self) -> float:
        """The share that passes the nonlinearity in one more forward pass of training."""
        self.model.train()
        with _shares(self.model) as shares, torch.no_grad():
            self._logits()
        return float(torch.stack(shares).mean()) if shares else 1.0


@contextlib.contextmanager
def _shares(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collects, a call, the share of entries behind each nonlinearity that are stored or not 0."""
    found: list[Tensor] = []

    def note(module: nn.Module, inputs: object, output: CBSR | Tensor) -> None:
        if isinstance(output, CBSR):
            found.append(torch.tensor(output.k / output.width, dtype=torch.float64))
        else:
            found.append((output != 0).double().mean())

    hooks = [m.register_forward_hook(note) for m in model.modules() if isinstance(m, Activation)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _stalled(lines: list[list[float]], config: TrainConfig) -> int | None:
    """Epochs until validation has not improved for ``patience`` of them, or None."""
    best, since = float("-inf"), config.anneal
    for epoch, line in enumerate(lines[config.anneal :], start=config.anneal + 1):
        if line[_VAL] > best:
            best, since = line[_VAL], epoch
        elif epoch - since >= config.patience:
            return epoch
    return None
