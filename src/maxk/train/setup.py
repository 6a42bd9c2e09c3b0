"""Settings -> the parts of a run: data, model, device."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from maxk.core.errors import CompileError, DeviceError
from maxk.data.dataset import Dataset
from maxk.data.load import load
from maxk.nn import GCN, GIN, GraphSAGE
from maxk.nn.nonlinearities import Activation
from maxk.ops import dispatch
from maxk.train.config import TrainConfig
from maxk.train.isolation import Initialising, numerics

log = logging.getLogger(__name__)

_MODELS: dict[str, type[GraphSAGE] | type[GCN] | type[GIN]] = {
    "sage": GraphSAGE,
    "gcn": GCN,
    "gin": GIN,
}


def load_dataset(config: TrainConfig) -> Dataset:
    """Loads the data set that the settings name.

    Raises:
        DataError: it is unknown, missing or broken.
    """
    with numerics(config):
        return load(
            config.dataset,
            undirected=config.undirected,
            self_loops=config.self_loops,
            split=config.seed if config.split == "seed" else config.split,
            seed=config.seed,
            scaling=config.scaling,
            features=config.features,
            labels=config.labels,
        )


def build_model(
    config: TrainConfig, dataset: Dataset, random: dict[str, Tensor] | None = None
) -> nn.Module:
    """Returns the untrained model for a data set.

    Args:
        config: The settings.
        dataset: Its features and classes are the model's inputs and outputs.
        random: Generators of the run, which the weights are drawn from; by default torch's own.
    """
    if random is not None:
        with Initialising(random):
            return build_model(config, dataset)
    model: nn.Module = _MODELS[config.model](
        dataset.x.shape[1],
        config.hidden,
        config.layers,
        dataset.num_classes,
        k=config.k,
        nonlinearity=config.nonlinearity,
        dropout=config.dropout,
        norm=None if config.norm == "none" else config.norm,
        groups=config.groups,
        threshold=config.threshold,
        residual=config.residual,
    )
    return model


def compiled(model: nn.Module) -> Callable[..., Tensor]:
    """Returns the model through torch.compile; a failed compilation is a CompileError."""
    # The compiler is imported only where it is asked for.
    from torch._dynamo.exc import TorchDynamoException

    inner = torch.compile(model)

    def forward(x: Tensor, graph: Any) -> Tensor:
        try:
            result: Tensor = inner(x, graph)
        except TorchDynamoException as error:
            # Behind the first blank line torch says how to report a bug to it.
            reason = " ".join(str(error).partition("\n\n")[0].split())
            raise CompileError(
                f"--compile failed: {reason}; mend that or leave the flag out"
            ) from error
        return result

    return forward


def resolve_device(name: str) -> torch.device:
    """Returns the device for ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        DeviceError: a GPU was asked for that this machine or this torch does not have.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return torch.device("cpu")
    if not count:
        raise DeviceError(
            f"--device {name} asks for a GPU, but torch {torch.__version__} finds none here; "
            "use --device cpu"
        )
    index = int(name.partition(":")[2] or torch.cuda.current_device())
    if index >= count:
        raise DeviceError(f"--device {name} must be in cuda:0 .. cuda:{count - 1}, got {name}")
    return torch.device("cuda", index)


def uncapturable(dataset: Dataset, device: torch.device) -> str | None:
    """Returns why no CUDA graph can hold a step on this data and device, or None where one can."""
    if dataset.x.layout != torch.strided:
        return "sparse features are compared with their last state in every step"
    if problem := dispatch.cuda_problem(device):
        return f"the reference runs on {device}: {problem}"
    return None


def k_at(config: TrainConfig, epoch: int) -> int:
    """Returns the k of an epoch, counted from 1.

    In the first ``anneal`` epochs k falls by halves from the hidden width, each step as long as the
    next; from then on it is ``k``.

    Example:
        >>> config = TrainConfig(hidden=64, k=8, anneal=6)
        >>> [k_at(config, epoch) for epoch in range(1, 9)]
        [64, 64, 32, 32, 16, 16, 8, 8]
    """
    if epoch > config.anneal or config.nonlinearity != "maxk":
        return config.k
    steps = []
    k = config.hidden
    while k > config.k:
        steps.append(k)
        k //= 2
    if not steps:
        return config.k
    return steps[(epoch - 1) * len(steps) // config.anneal]


def set_k(model: nn.Module, k: int) -> bool:
    """Lets every MaxK of a model keep k entries from now on; returns whether that is a change."""
    changed = False
    for module in model.modules():
        if isinstance(module, Activation) and module.nonlinearity == "maxk" and module.k != k:
            module.k = k
            changed = True
    return changed
