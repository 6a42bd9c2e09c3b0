"""The training step: loss, Adam, its capture in a CUDA graph, and where its time goes.

There is one: the trainer makes it, and the benchmarks of epochs and ``maxk profile`` time it.
"""

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

    On a CPU nothing is updated where the loss is not finite, since the update would destroy the
    weights; on a GPU the check would wait for the device.

    Args:
        model: Whose parameters are trained.
        forward: Runs the model on the whole graph and returns its logits, [N, C].
        target: What the loss compares.
        lr: Learning rate.
        weight_decay: L2 penalty added to the gradient.

    Attributes:
        model: The same module.
        optimizer: Adam over its parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        forward: Forward,
        target: Target,
        *,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
    ) -> None:
        self.model, self._forward, self._target = model, forward, target
        # On a GPU one kernel serves all parameters, and the step count may live in a CUDA graph;
        # with and without a graph alike, so that the results agree bit for bit.
        cuda = target.nodes.is_cuda
        self._flags: dict[str, Any] = {"fused": cuda, "capturable": cuda}
        self.optimizer = torch.optim.Adam(
            model.parameters(), lr=lr, weight_decay=weight_decay, **self._flags
        )

    def __call__(self) -> Tensor:
        """Runs one epoch and returns its loss, on the device."""
        loss = self._begin()
        if self._updates(loss):
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        return loss.detach()

    def measured(self) -> tuple[Tensor, dict[str, float]]:
        """Runs one epoch and returns its loss, and in seconds where its time went.

        ``select`` is MaxK with its backward, and the norm before it where they are one operation;
        ``forward`` and ``backward`` are aggregation, ``optimiser`` is Adam, ``dense`` is all else:
        linear layers, norm, dropout, loss. On a GPU the device is waited for after each operation,
        so that the parts add up to more than a step.
        """
        start = self._clock()
        with dispatch.record() as ahead:
            loss = self._begin()
        updates = self._updates(loss)
        # The recorder belongs to this thread, and a GPU's backward has a thread of its own.
        with torch.autograd.set_multithreading_enabled(False), dispatch.record() as back:
            if updates:
                loss.backward()  # type: ignore[no-untyped-call]
        end = self._clock()
        if updates:
            self.optimizer.step()
        done = self._clock()
        select = ahead.select + back.select
        parts = {"select": select, "forward": ahead.aggregate, "backward": back.aggregate}
        dense = max(end - start - sum(parts.values()), 0.0)
        return loss.detach(), {**parts, "dense": dense, "optimiser": done - end}

    def parts(self) -> dict[str, float]:
        """Runs one epoch and returns where its time went, in milliseconds."""
        return {name: 1e3 * seconds for name, seconds in self.measured()[1].items()}

    def split(self, rounds: int = 3) -> dict[str, float]:
        """Returns the medians of :meth:`parts` over several epochs."""
        taken = [self.parts() for _ in range(rounds)]
        return {name: sorted(part[name] for part in taken)[rounds // 2] for name in taken[0]}

    def loss(self) -> Tensor:
        """Returns the loss, with its graph of gradients."""
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

    def load_optimizer(self, state: dict[str, Any]) -> None:
        """Continues Adam from its saved state, which may come from another kind of device."""
        groups = [{**group, **self._flags} for group in state["param_groups"]]
        self.optimizer.load_state_dict({**state, "param_groups": groups})

    def _begin(self) -> Tensor:
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        return self.loss()

    def _updates(self, loss: Tensor) -> bool:
        return self._target.nodes.is_cuda or bool(loss.isfinite())

    def _clock(self) -> float:
        if self._target.nodes.is_cuda:
            torch.cuda.synchronize(self._target.nodes.device)
        return time.perf_counter()


class Captured:
    """A call recorded once and replayed ever after: no launch gap, and nothing of Python.

    What the call reads must stay where it is in memory, and its result is overwritten by the next
    replay. Recording runs nothing: parameters, moments and random state are as they were, and the
    numbers that dropout draws in a replay are those the call would have drawn.

    Args:
        call: Returns a tensor; it ran at least once before, so that all it makes on first use is
            there.
        device: A CUDA device.
        pool: Memory from ``torch.cuda.graph_pool_handle()`` that calls replayed one after the other
            share: none of them reads what another left.
    """

    def __init__(self, call: Callable[[], Tensor], device: torch.device, pool: Any = None) -> None:
        with torch.cuda.device(device):
            self._graph: Any = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, pool=pool):
                self._result = call()

    def __call__(self) -> Tensor:
        """Replays the call and returns its result, which the next replay overwrites."""
        self._graph.replay()
        return self._result


def captured(
    call: Callable[[], Tensor], device: torch.device, pool: Any = None, *, warm_up: int = 3
) -> Captured:
    """Runs a call a few times on a side stream and captures it.

    Args:
        call: What to capture.
        device: A CUDA device.
        pool: As :class:`Captured` takes it.
        warm_up: Calls before, which compile kernels and make what is made on first use.
    """
    with torch.cuda.device(device):
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(warm_up):
                call()
        torch.cuda.current_stream().wait_stream(side)
    return Captured(call, device, pool)
