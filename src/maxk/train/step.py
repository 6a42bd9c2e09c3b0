"""One training step of one model as a call: eager, compiled, or replayed from a CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from maxk.ops import dispatch
from maxk.train import metrics

Forward = Callable[[], Tensor]


@dataclass(frozen=True)
class Target:
    """What the loss compares: labels of the training nodes.

    Attributes:
        nodes: int64 [T], training nodes.
        labels: [T] class ids or [T, C] zeros and ones.
    """

    nodes: Tensor
    labels: Tensor

    def loss(self, logits: Tensor) -> Tensor:
        """Returns the mean loss over the training nodes."""
        # The gradient of index_select adds rows; that of [nodes] sorts the node ids first.
        return metrics.loss(logits.index_select(0, self.nodes), self.labels)

    def signed_loss(self, logits: Tensor) -> Tensor:
        """Returns the same mean with the sign of a random half of the nodes reversed.

        Its gradient estimates how large the nodes' gradients are before they cancel in the sum.
        """
        count = self.nodes.numel()
        if count < 2:
            return 0 * self.loss(logits)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
        total = logits.new_zeros(())
        for sign, half in ((1, order[: count // 2]), (-1, order[count // 2 :])):
            part = half.to(self.nodes.device)
            mean = Target(self.nodes[part], self.labels[part]).loss(logits)
            total = total + sign * mean * (part.numel() / count)
        return total


class Step:
    """Zero the gradients, forward, loss, backward, Adam: what one epoch of full-batch training is.

    Args:
        model: Whose parameters are trained.
        forward: Runs the model on the whole graph, [N, C].
        target: What the loss compares.
    """

    def __init__(self, model: nn.Module, forward: Forward, target: Target) -> None:
        self.model, self._forward, self._target = model, forward, target
        cuda = target.nodes.is_cuda
        # One fused kernel for all parameters; capturable lets a CUDA graph hold the step count.
        self._optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, capturable=cuda)

    def __call__(self) -> Tensor:
        """Runs one epoch and returns its loss."""
        self._optimizer.zero_grad(set_to_none=True)
        loss = self.loss()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.detach()

    def loss(self) -> Tensor:
        """Returns the loss, with its graph."""
        return self._target.loss(self._forward())

    def gradients(self, *, signed: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns loss and gradients without dropout; the parameters stay as they are.

        Args:
            signed: Of :meth:`Target.signed_loss` instead of the loss.
        """
        self.model.eval()
        try:
            parameters = dict(self.model.named_parameters())
            loss = self._target.signed_loss(self._forward()) if signed else self.loss()
            grads = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        finally:
            self.model.train()
        known = {
            name: grad for name, grad in zip(parameters, grads, strict=True) if grad is not None
        }
        return loss.detach(), known

    def split(self, rounds: int = 3) -> dict[str, float]:
        """Returns where a step's time goes, in milliseconds, medians over rounds.

        ``select`` is MaxK with its backward, and the norm before it where they are one operation;
        ``forward`` and ``backward`` are aggregation, ``optimiser`` is Adam, ``dense`` is all else:
        linear layers, norm, dropout, loss. On a GPU the device is waited for after each operation,
        so that the parts add up to more than a step.
        """
        taken = [self.parts() for _ in range(rounds)]
        return {name: sorted(part[name] for part in taken)[rounds // 2] for name in taken[0]}

    def parts(self) -> dict[str, float]:
        """Runs one epoch and returns where its time went, as :meth:`split` names it."""
        self._optimizer.zero_grad(set_to_none=True)
        clock = self._clock
        start = clock()
        with dispatch.record() as ahead:
            loss = self.loss()
        # The recorder belongs to this thread, and a GPU's backward has a thread of its own.
        with torch.autograd.set_multithreading_enabled(False), dispatch.record() as back:
            loss.backward()  # type: ignore[no-untyped-call]
        end = clock()
        self._optimizer.step()
        done = clock()
        select = ahead.select + back.select
        forward, backward = ahead.aggregate, back.aggregate
        parts = {
            "select": select,
            "forward": forward,
            "backward": backward,
            "dense": max(end - start - select - forward - backward, 0.0),
            "optimiser": done - end,
        }
        return {name: 1e3 * seconds for name, seconds in parts.items()}

    def _clock(self) -> float:
        if self._target.nodes.is_cuda:
            torch.cuda.synchronize(self._target.nodes.device)
        return time.perf_counter()


def captured(step: Step, device: torch.device, pool: Any = None) -> Callable[[], object]:
    """Returns the step replayed from a CUDA graph: no launch gap, nothing of Python.

    Args:
        step: What to capture; it runs a few times first, on a side stream.
        device: A CUDA device.
        pool: Memory from ``torch.cuda.graph_pool_handle()`` that graphs replayed one after the
            other may share: none of them reads what another left.
    """
    with torch.cuda.device(device):
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            step()
    return graph.replay  # type: ignore[no-any-return]


class Captured:
    """A call recorded once and replayed ever after.

    What the call reads must stay where it is in memory, and its result is overwritten by the next
    replay. Recording runs nothing: parameters, moments and random state are as they were, and the
    numbers that dropout draws in a replay are those the call would have drawn.

    Args:
        call: Returns a tensor; it ran at least once before, so that all it makes on first use is
            there.
        device: A CUDA device.
        pool: Memory that calls replayed one after the other share.
    """

    def __init__(self, call: Callable[[], Tensor], device: torch.device, pool: Any) -> None:
        with torch.cuda.device(device):
            self._graph: Any = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, pool=pool):
                self._result = call()

    def __call__(self) -> Tensor:
        """Replays the call and returns its result, which the next replay overwrites."""
        self._graph.replay()
        return self._result
