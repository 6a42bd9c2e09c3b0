"""Full-batch training of one model on one data set with one seed."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import math
import pickle
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self, SupportsIndex

import torch
from torch import Tensor

from maxk.core.errors import CheckpointError, DataError, TrainingError
from maxk.data.dataset import Dataset, Evaluator
from maxk.device.compiling import run_clock
from maxk.measure.memory import peak_memory, reset_peak_memory
from maxk.train import advice, metrics
from maxk.train.checkpoint import changed_parts, contents, copied, on_cpu
from maxk.train.config import TrainConfig
from maxk.train.diagnosis import all_finite, first_fault
from maxk.train.isolation import drawing, first_random, numerics
from maxk.train.loggers import Logger
from maxk.train.setup import (
    build_model,
    compiled,
    k_at,
    load_dataset,
    resolve_device,
    set_k,
    uncapturable,
)
from maxk.train.step import Captured, Step, Target

log = logging.getLogger(__name__)

#: Epochs in which kernels are compiled and matrices made; their time stands for no other epoch.
WARM_UP = 2
#: Epochs after them whose time is split into select, aggregate and rest: on a GPU every operation
#: waits for the device there. A CUDA graph, which has no separate operations, starts after them.
MEASURED = 3


@dataclass(frozen=True)
class Epoch:
    """What one epoch gave.

    Attributes:
        epoch: Counted from 1.
        loss: Mean training loss, before this epoch's step.
        train: Score of the training nodes after the step, dropout off; so are ``val`` and ``test``.
        val: Score of the validation nodes.
        test: Score of the test nodes.
        seconds: Forward, backward and optimizer step, without the compilation of kernels.
        seconds_evaluate: The forward pass that the scores are taken from.
        seconds_select: Share of ``seconds`` spent in MaxK; None where it was not measured.
        seconds_aggregate: The same for aggregation, forward and backward.
    """

    epoch: int
    loss: float
    train: float
    val: float
    test: float
    seconds: float
    seconds_evaluate: float
    seconds_select: float | None = None
    seconds_aggregate: float | None = None


@dataclass(frozen=True)
class Best:
    """The epoch with the best validation score so far, and its weights on the CPU."""

    epoch: int
    val: float
    test: float
    weights: dict[str, Tensor]


def median(values: list[Any]) -> float | None:
    """Median of the numbers that are known; None where there is none."""
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None


class Trainer:
    """Trains a model by full-batch gradient descent and keeps the best validation epoch.

    A run is that of its settings and data, whatever the process has set for itself: default dtype
    and device, float32 precision, autocast, inference mode. Each call puts back what it sets of
    torch, also when it fails. Trainers in several threads are right and take turns, an epoch each;
    to train at the same time, use processes.

    Weights and dropout are drawn from a generator of the trainer, and that of the process stays as
    it is. On a GPU and under ``compile`` dropout can only draw from the generators of the process:
    they are set at the start of a call and put back at its end, so another thread that draws from
    the same ones *during* an epoch changes the run.

    Args:
        config: The settings; ``seeds``, ``out``, ``resume`` and ``quiet`` play no part here.
        dataset: A loaded data set; by default the one that ``config`` names.
        loggers: Told of every epoch, see :class:`~maxk.train.loggers.Logger`; Lightning's loggers
            are such too.

    Attributes:
        config: The settings.
        dataset: Graph, features and labels on the device that trains.
        model: The module, with the weights of the last epoch.
        history: One :class:`Epoch` for each epoch trained; ``pandas.DataFrame(trainer.history)`` is
            a table of them.
        best: The best validation epoch so far, or None before the first.
        loggers: A list that may be changed between epochs.

    Raises:
        DeviceError: the device asked for cannot be used.
        DataError: a split holds no nodes.

    Example:
        >>> from maxk.train.config import TrainConfig
        >>> trainer = Trainer(TrainConfig(dataset="digits", hidden=64, k=8, epochs=30))
        >>> trainer.fit()["test"] > 0.8
        True
        >>> trainer.restore_best().predict().shape
        torch.Size([1797, 10])
    """

    def __init__(
        self,
        config: TrainConfig,
        dataset: Dataset | None = None,
        *,
        loggers: Iterable[Logger] = (),
    ) -> None:
        self.config = config
        self.loggers = list(loggers)
        self._greeted: list[Logger] = []
        self.device = resolve_device(config.device)
        self.history: list[Epoch] = []
        self.best: Best | None = None
        self._peak = 0
        self._warm = 0
        self._captured: tuple[Captured, Captured] | None = None
        with numerics(config):
            self._prepare(load_dataset(config) if dataset is None else dataset)

    def _prepare(self, dataset: Dataset) -> None:
        config = self.config
        with advice.within_memory(config, dataset, self.device):
            self.dataset = _trainable(dataset).to(self.device)
        self._nodes = _split_nodes(self.dataset)
        self._labels = {name: self.dataset.y[nodes] for name, nodes in self._nodes.items()}
        reset_peak_memory(self.device)
        self._random = first_random(config.seed, self.device)
        self.model = build_model(config, self.dataset, self._random).to(self.device)
        self._forward = self._callable()
        target = Target(self._nodes["train"], self._labels["train"])
        self._step = Step(
            self.model, self._logits, target, lr=config.lr, weight_decay=config.weight_decay
        )

    def _callable(self) -> Callable[..., Tensor]:
        return compiled(self.model) if self.config.compile else self.model

    def __getstate__(self) -> dict[str, Any]:
        # Compiled code and a CUDA graph know the weights of this trainer and no others.
        return {**self.__dict__, "_forward": None, "_captured": None, "_warm": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forward = self._callable()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return made

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """Checks that what the caller made can be pickled, which the error would not name."""
        parts = [("a logger", logger) for logger in self.loggers]
        for what, part in [*parts, ("the evaluator of the data set", self.dataset.evaluator)]:
            try:
                pickle.dumps(part)
            except Exception as error:
                raise TypeError(
                    f"{what} of this trainer, a {type(part).__name__}, cannot be pickled "
                    f"({error}); take it out first, or define it at the top level of a module"
                ) from error
        return super().__reduce_ex__(protocol)

    @property
    def epoch(self) -> int:
        """Epochs trained so far."""
        return len(self.history)

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or validation has not improved for ``patience`` of them."""
        patience = self.config.patience
        stalled = bool(patience and self.best and self.epoch - self.best.epoch >= patience)
        return stalled or self.epoch >= self.config.epochs

    @property
    def sound(self) -> bool:
        """Whether the weights are those of the last epoch, all of them finite."""
        return all_finite(self.model)

    @functools.cached_property
    def contents(self) -> dict[str, str]:
        """The SHA-256 of each part of the data set, as checkpoints carry it."""
        return contents(self.dataset)

    def fit(self, on_epoch: Callable[[Epoch], object] | None = None) -> dict[str, Any]:
        """Trains until :attr:`finished` and returns :meth:`summary`.

        Args:
            on_epoch: Called after each epoch.

        Raises:
            TrainingError: the loss is no longer finite.
        """
        status = "failed"
        try:
            while not self.finished:
                record = self.train_epoch()
                if on_epoch is not None:
                    on_epoch(record)
            status = "success"
        finally:
            self.close_loggers(status)
        return self.summary()

    def train_epoch(self) -> Epoch:
        """Makes one step on all training nodes, then scores every split.

        Raises:
            TrainingError: the loss, or a prediction after the step, is no longer finite, or the GPU
                has too little memory.
            CompileError: ``compile`` is on and torch.compile failed.
        """
        if self.config.anneal and set_k(self.model, k_at(self.config, self.epoch + 1)):
            # A captured step is that of another k.
            self._captured, self._warm = None, 0
        memory = advice.within_memory(self.config, self.dataset, self.device)
        with memory, self._isolated():
            self._capture_when_warm()
            start = self._clock()
            result, parts = self._train()
            loss = float(result)
            seconds = self._clock() - start
            if not math.isfinite(loss):
                raise TrainingError(self._diverged("loss", loss, training=True))
            start = self._clock()
            logits = self._captured[1]() if self._captured else self._predict()
            scores = self._scores(logits)
            seconds_evaluate = self._clock() - start
        self._warm += 1
        record = Epoch(
            epoch=self.epoch + 1,
            loss=loss,
            **scores,
            seconds=seconds,
            seconds_evaluate=seconds_evaluate,
            seconds_select=parts["select"] if parts else None,
            seconds_aggregate=parts["forward"] + parts["backward"] if parts else None,
        )
        if record.epoch > self.config.anneal and (self.best is None or record.val > self.best.val):
            self.best = Best(record.epoch, record.val, record.test, on_cpu(self.model))
        self.history.append(record)
        self._peak = max(self._peak, peak_memory(self.device))
        self._log(record)
        return record

    def close_loggers(self, status: str = "success") -> None:
        """Ends the loggers; training on opens them again.

        Args:
            status: ``"success"``, or ``"failed"`` where training broke off.
        """
        for logger in self.loggers:
            logger.finalize(status)

    def restore_best(self) -> Trainer:
        """Gives the model the weights of the best validation epoch, and returns the trainer.

        To train on from them is another run: the optimizer keeps the moments of the last epoch.

        Raises:
            TrainingError: no epoch was trained yet.
        """
        if self.best is None:
            raise TrainingError("there are no best weights yet: no epoch was trained")
        self.load_weights(self.best.weights)
        return self

    def predict(self) -> Tensor:
        """Returns the logits ``[N, C]`` of every node under the model's present weights."""
        with self._isolated():
            return self._predict()

    def evaluate(self) -> dict[str, float]:
        """Returns the train, val and test scores under the model's present weights.

        Where the data set has an evaluator of its own, they are that one's to the last digit.
        """
        with self._isolated():
            return self._scores(self._predict(), final=True)

    def summary(self) -> dict[str, Any]:
        """Returns the result of the epochs trained so far.

        ``val`` and ``test`` are those of the best validation epoch, ``test_last`` that of the last
        epoch. Seconds are medians over the epochs; memory is in bytes.

        Raises:
            TrainingError: no epoch was trained yet.
        """
        if self.best is None:
            raise TrainingError("there is no result yet: no epoch was trained")
        config = self.config
        seconds = median([e.seconds for e in self.history])
        select = median([e.seconds_select for e in self.history])
        aggregate = median([e.seconds_aggregate for e in self.history])
        rest = None
        if seconds is not None and select is not None and aggregate is not None:
            rest = max(seconds - select - aggregate, 0.0)
        return {
            "dataset": self.dataset.name,
            "model": config.model,
            "nonlinearity": config.nonlinearity,
            "k": config.k if config.nonlinearity != "relu" else None,
            "hidden": config.hidden,
            "layers": config.layers,
            "metric": self.dataset.metric,
            "epochs": self.epoch,
            "best_epoch": self.best.epoch,
            "val": self.best.val,
            "test": self.best.test,
            "test_last": self.history[-1].test,
            "seconds_per_epoch": seconds,
            "seconds_select": select,
            "seconds_aggregate": aggregate,
            "seconds_rest": rest,
            "seconds_evaluate": median([e.seconds_evaluate for e in self.history]),
            "peak_memory": self._peak,
            "device": str(self.device),
            "seed": config.seed,
        }

    def state(self) -> dict[str, Any]:
        """Returns all that :meth:`load_state` needs to continue bit for bit, on the CPU."""
        best = self.best
        with numerics(self.config):
            weights, moments = on_cpu(self.model), copied(self._step.optimizer.state_dict())
        return {
            "epoch": self.epoch,
            "shape": self._shape(),
            "contents": self.contents,
            "model": weights,
            "optimizer": moments,
            "random": dict(self._random),
            "best": None
            if best is None
            else {
                "epoch": best.epoch,
                "val": best.val,
                "test": best.test,
                "weights": best.weights,
            },
            "history": [asdict(e) for e in self.history],
            "peak_memory": self._peak,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continues from what :meth:`state` returned, in this process or another.

        Raises:
            CheckpointError: the state belongs to another data set or model.
        """
        try:
            with numerics(self.config):
                self._load_state(state)
        except CheckpointError:
            raise
        except (KeyError, TypeError, AttributeError, IndexError, ValueError, RuntimeError) as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise CheckpointError(
                f"the checkpoint is not what this version of maxk saves ({reason}); "
                "start the run again in another folder"
            ) from error

    def _load_state(self, state: Mapping[str, Any]) -> None:
        ours, other = self._shape(), state["shape"]
        for name, value in ours.items():
            if other.get(name) != value:
                raise CheckpointError(
                    f"the checkpoint was made with {name} {other.get(name)}, this run has {value}; "
                    "resume with the data and settings of the run"
                )
        # States of earlier releases do not name the contents of their data.
        compared = not self.config.other_data and state.get("contents") is not None
        if compared and (parts := changed_parts(state["contents"], self.contents)):
            raise CheckpointError(
                f"{self.dataset.name} has other {parts} than the data that the checkpoint was made "
                "with; resume with those, or continue on these with --other-data"
            )
        try:
            self.model.load_state_dict(state["model"])
            self._step.load_optimizer(state["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise CheckpointError("the checkpoint holds the weights of another model") from error
        for name in self._random:
            if name in state["random"]:
                self._random[name] = state["random"][name]
            else:
                log.warning(
                    "the checkpoint was made on another kind of device, so dropout on %s starts "
                    "from the seed and the run does not continue bit for bit",
                    name,
                )
        # Tried at once, since a generator refuses a state that is not its own.
        with self._drawing():
            pass
        self.history = [Epoch(**e) for e in state["history"]]
        self.best = None if state["best"] is None else Best(**state["best"])
        self._peak = state["peak_memory"]
        # A captured step knows the moments by their place in memory, and they have moved.
        self._captured, self._warm = None, 0

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Gives the model other weights, for :meth:`evaluate` and :meth:`predict`.

        Raises:
            CheckpointError: they belong to another model or data set.
        """
        try:
            self.model.load_state_dict(weights)
        except RuntimeError as error:
            raise CheckpointError(
                "the weights do not fit the model: they were made with other settings or on a data "
                "set with other features or classes"
            ) from error

    def __repr__(self) -> str:
        config, metric = self.config, metrics.METRIC_NAMES[self.dataset.metric]
        kept = "relu" if config.nonlinearity == "relu" else f"{config.nonlinearity} k={config.k}"
        text = (
            f"Trainer({config.model} {kept}, hidden {config.hidden}, layers {config.layers}, on "
            f"{self.dataset.name}, {self.device}: epoch {self.epoch} of {config.epochs}"
        )
        if self.best is not None:
            text += (
                f", best {metric} {self.best.val:.2%} val, {self.best.test:.2%} test "
                f"in epoch {self.best.epoch}"
            )
        return text + ")"

    def _log(self, record: Epoch) -> None:
        """Tells the loggers of an epoch, and those that hear of the run first, its settings."""
        if not self.loggers:
            return
        scores = {f"{n}_{self.dataset.metric}": getattr(record, n) for n in self._nodes}
        told = {n: v for n, v in asdict(record).items() if v is not None and n not in self._nodes}
        step = told.pop("epoch")
        for logger in self.loggers:
            if not any(logger is known for known in self._greeted):
                logger.log_hyperparams({"dataset": self.dataset.name, **asdict(self.config)})
                self._greeted.append(logger)
            logger.log_metrics({"loss": told["loss"], **scores, **told}, step)

    def _train(self) -> tuple[Tensor, dict[str, float]]:
        """Makes one step; returns the loss, on the device, and where the time went if measured."""
        if self._captured:
            return self._captured[0](), {}
        # A compiled model calls no operation by name, and a CUDA graph none at all. On a GPU each
        # record waits for the device, so a few epochs after the warm-up stand for all.
        few = WARM_UP <= self._warm < WARM_UP + MEASURED
        if self.config.compile or (self.device.type == "cuda" and not few):
            return self._step(), {}
        return self._step.measured()

    def _predict(self) -> Tensor:
        self.model.eval()
        with torch.no_grad():
            return self._logits()

    def _logits(self) -> Tensor:
        if self.device.type != "cuda" or self.config.precision != "medium":
            return self._forward(self.dataset.x, self.dataset.graph)
        # Without the cache: a CUDA graph must not find weights cast before it was recorded.
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            return self._forward(self.dataset.x, self.dataset.graph).float()

    def _capture_when_warm(self) -> None:
        """Records step and prediction as CUDA graphs, once the operations were seen and split."""
        if self._captured or self._warm < WARM_UP + MEASURED or not self.config.cuda_graph:
            return
        if self.device.type != "cuda" or uncapturable(self.dataset, self.device):
            return
        pool = torch.cuda.graph_pool_handle()
        try:
            self._captured = (
                Captured(self._step, self.device, pool),
                Captured(self._predict, self.device, pool),
            )
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise TrainingError(
                f"the step cannot be captured in a CUDA graph ({reason}); use --no-cuda-graph"
            ) from error

    def _scores(self, logits: Tensor, *, final: bool = False) -> dict[str, float]:
        if not bool(logits.isfinite().all()):
            raise TrainingError(self._diverged("output of the model", math.nan, training=False))
        judge: Evaluator = functools.partial(metrics.score, self.dataset.metric)
        if self.dataset.evaluator is not None:
            # Many tasks cost an evaluator on the CPU seconds; between epochs the same areas are
            # taken on the device.
            many = self.dataset.multi_label and self.dataset.metric == "roc_auc"
            judge = metrics.quick_roc_auc if many and not final else self.dataset.evaluator
        return {n: judge(logits[nodes], self._labels[n]) for n, nodes in self._nodes.items()}

    def _diverged(self, what: str, value: float, *, training: bool) -> str:
        # The same dropout as in the pass that went wrong.
        self.model.train(training)
        x, graph = self.dataset.x, self.dataset.graph
        with self._drawing():
            fault = first_fault(self.model, x, lambda: self.model(x, graph))
        return (
            f"the {what} is {value} in epoch {self.epoch + 1}, so training stopped: {fault}; "
            f"try a smaller --lr (it is {self.config.lr:g}), --norm layer or --scaling standard"
        )

    def _shape(self) -> dict[str, int]:
        graph, x = self.dataset.graph, self.dataset.x
        return {
            "nodes": graph.num_dst,
            "edges": graph.num_edges,
            "features": x.shape[1],
            "classes": self.dataset.num_classes,
        }

    @contextlib.contextmanager
    def _isolated(self) -> Iterator[None]:
        """Runs the code inside with the numerics and the generators of this run."""
        with numerics(self.config), self._drawing():
            yield

    def _drawing(self) -> contextlib.AbstractContextManager[None]:
        shared = self.config.compile or self.device.type == "cuda"
        return drawing(self._random, self.device, shared=shared)

    def _clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return run_clock()


def _trainable(dataset: Dataset) -> Dataset:
    """The same data set without tensors of inference mode, which no gradient may read."""
    names = ("x", "y", "train_mask", "val_mask", "test_mask")
    held = {name: getattr(dataset, name) for name in names}
    made = {name: tensor.clone() for name, tensor in held.items() if tensor.is_inference()}
    return replace(dataset, **made) if made else dataset


def _split_nodes(dataset: Dataset) -> dict[str, Tensor]:
    masks = {"train": dataset.train_mask, "val": dataset.val_mask, "test": dataset.test_mask}
    nodes = {name: mask.nonzero()[:, 0] for name, mask in masks.items()}
    for name, indices in nodes.items():
        if indices.numel() == 0:
            raise DataError(f"{dataset.name}: the {name} split holds no nodes, so it has no score")
    return nodes
