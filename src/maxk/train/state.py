"""What a checkpoint holds of torch: tensors on the CPU, an optimiser's moments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
