"""What a checkpoint holds of torch: tensors on the CPU, generators, an optimiser's moments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def for_device(optimizer: Mapping[str, Any], flags: Mapping[str, bool]) -> dict[str, Any]:
    """The saved state of Adam with the flags of this device in place of those it was saved with."""
    groups = [{**group, **flags} for group in optimizer["param_groups"]]
    return {**optimizer, "param_groups": groups}


def on_cpu(model: nn.Module) -> dict[str, Tensor]:
    """Copies the weights, since the model's own change with the next step."""
    return {n: t.detach().to("cpu", copy=True) for n, t in model.state_dict().items()}


def copied(value: Any) -> Any:
    """The same dictionaries and lists with every tensor copied to the CPU."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {name: copied(part) for name, part in value.items()}
    return [copied(part) for part in value] if isinstance(value, list) else value


def random_state(device: torch.device) -> dict[str, Tensor]:
    """States of the generators that a run on this device draws from."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Gives the generators the states that :func:`random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
