"""What a run sets of torch's global state while it works, and puts back afterwards.

Precision, determinism, the default dtype and the generators of GPUs belong to the whole process, so
trainers in threads take turns, one call of a trainer after the other. The CPU generator of a run is
an object of its own, which nothing else draws from.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from maxk.nn.functional import dropout_from

if TYPE_CHECKING:
    from maxk.train.config import TrainConfig

_lock = threading.RLock()


def _new_lock() -> None:
    """A forked child has no copy of the thread that held the lock and would release it."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Waits until no other thread is inside; a thread may enter again from within."""
    with _lock:
        yield


@contextlib.contextmanager
def numerics(config: TrainConfig) -> Iterator[None]:
    """Runs the code inside with the numerics of a run, whatever the process has set for itself.

    Inside, float32 products have ``precision``, algorithms are deterministic where
    ``deterministic`` asks for it, new tensors are float32 on the CPU unless they say otherwise,
    gradients are on, and autocast and inference mode are off. On the CPU, ``deterministic`` also
    leaves torch one thread: its products and sums round differently on another number of threads.
    All of it is put back.

    Args:
        config: Its ``precision``, ``deterministic`` and ``device`` are read.
    """
    with one_at_a_time(), contextlib.ExitStack() as stack:
        stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision(config.precision)
        if torch.get_default_dtype() != torch.float32:
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(torch.float32)
        if config.deterministic:
            stack.callback(
                torch.use_deterministic_algorithms,
                torch.are_deterministic_algorithms_enabled(),
                warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
            )
            torch.use_deterministic_algorithms(True)
            if config.device == "cpu" or not torch.cuda.is_available():
                # It imports numba, which a run on a GPU can do without.
                from maxk.device.cpu import torch_on_one_thread

                stack.enter_context(torch_on_one_thread())
        # Each of these costs every call of torch inside, or a graph of torch.compile.
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if not torch.is_grad_enabled():
            stack.enter_context(torch.enable_grad())
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def first_random(seed: int, device: torch.device) -> dict[str, Tensor]:
    """Returns the states of the generators of a run that has drawn nothing yet."""
    state = {"cpu": torch.Generator().manual_seed(seed).get_state()}
    if device.type == "cuda":
        state["cuda"] = torch.Generator(device).manual_seed(seed).get_state()
    return state


@contextlib.contextmanager
def drawing(state: dict[str, Tensor], device: torch.device, *, shared: bool) -> Iterator[None]:
    """Draws random numbers from the generators of a run, whose states move on if nothing fails.

    Args:
        state: What :func:`first_random` returned; updated in place.
        device: The device that the run uses.
        shared: Whether dropout can only draw from the generators of the process, as on a GPU and
            under ``torch.compile``. They are set inside and put back afterwards, so what other
            threads draw from them meanwhile changes the run, and is drawn again by the process.
    """
    if not shared:
        generator = torch.Generator()
        generator.set_state(state["cpu"])
        with dropout_from(generator):
            yield
        state["cpu"] = generator.get_state()
        return
    outside = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        outside["cuda"] = torch.cuda.get_rng_state(device)
    try:
        _set_process_random(state, device)
        yield
        state["cpu"] = torch.get_rng_state()
        if device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(device)
    finally:
        _set_process_random(outside, device)


def _set_process_random(state: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


class Initialising(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Draws the first weights of a model from the CPU generator of a run.

    Modules draw theirs in place, from the generator of the process and without asking which.

    Args:
        state: What :func:`first_random` returned; updated in place.
    """

    def __init__(self, state: dict[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._state = state
        self._generator = torch.Generator()
        self._generator.set_state(state["cpu"])

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if any(argument.name == "generator" for argument in func._schema.arguments):
            given["generator"] = given.get("generator") or self._generator
        return func(*args, **given)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._state["cpu"] = self._generator.get_state()
