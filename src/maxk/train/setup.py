"""Settings -> the parts of a run: data, model, device."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from maxk.core.errors import CompileError, DeviceError
from maxk.data.dataset import Dataset
from maxk.data.features import check_features, identity_features, scale_features
from maxk.data.load import build_graph, check_counts, load, open_source
from maxk.graph.graph import Graph
from maxk.nn.models import MODELS
from maxk.nn.nonlinearities import Activation
from maxk.ops import dispatch
from maxk.train.config import TrainConfig
from maxk.train.isolation import Initialising, numerics

log = logging.getLogger(__name__)


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


def load_inputs(config: TrainConfig) -> tuple[str, Graph, Tensor]:
    """Loads name, graph and features of the data set that the settings name, without labels.

    Raises:
        DataError: it is unknown, missing or broken.
    """
    with numerics(config):
        source = open_source(config.dataset, config.features)
        nodes = check_counts(source)
        if source.x is None:
            x = identity_features(nodes)
        else:
            x = check_features(source.x, f"{source.origin}: {source.called('x')}")
        graph = build_graph(
            source, nodes, undirected=config.undirected, self_loops=config.self_loops
        )
        return source.name, graph, scale_features(x, config.scaling)


def build_model(
    config: TrainConfig, dataset: Dataset, random: dict[str, Tensor] | None = None
) -> nn.Module:
    """Returns the untrained model for a data set.

    Args:
        config: The settings.
        dataset: Its features and classes are the model's inputs and outputs.
        random: Generators of the run, which the weights are drawn from; by default torch's own.
    """
    drawing = contextlib.nullcontext() if random is None else Initialising(random)
    with drawing:
        return model_of_widths(config, dataset.num_features, dataset.num_classes)


def model_of_widths(config: TrainConfig, in_channels: int, out_channels: int) -> nn.Module:
    """Returns the model of the settings, with weights from torch's present seed.

    Args:
        config: The settings.
        in_channels: Features of a node.
        out_channels: Classes, or labels where a node may have several.
    """
    model: nn.Module = MODELS[config.model](
        in_channels,
        config.hidden,
        config.layers,
        out_channels,
        k=config.k,
        nonlinearity=config.nonlinearity,
        dropout=config.dropout,
        norm=None if config.norm == "none" else config.norm,
        groups=config.groups,
        threshold=config.threshold,
        residual=config.residual,
    )
    return model


def run_model(
    config: TrainConfig, forward: Callable[..., Tensor], x: Tensor, graph: Graph
) -> Tensor:
    """Returns the logits [N, C] in the precision of the settings."""
    if x.device.type != "cuda" or config.precision != "medium":
        return forward(x, graph)
    # Without the cache: a CUDA graph must not find weights cast before it was recorded.
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        return forward(x, graph).float()


def compiled(model: nn.Module) -> Callable[..., Tensor]:
    """Returns the model through torch.compile; a failed compilation is a CompileError."""
    # The compiler is imported only where it is requested.
    from torch._dynamo.exc import TorchDynamoException

    inner = torch.compile(model)

    def forward(x: Tensor, graph: Any) -> Tensor:
        try:
            result: Tensor = inner(x, graph)
        except TorchDynamoException as error:
            # After the first blank line torch says how to report a bug to it.
            reason = " ".join(str(error).partition("\n\n")[0].split())
            raise CompileError(
                f"--compile failed: {reason}; fix that or leave the flag out"
            ) from error
        return result

    return forward


def resolve_device(name: str) -> torch.device:
    """Returns the device for ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        DeviceError: a GPU was requested that this machine or this torch does not have.
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
        return "the graph of sparse features is checked for changes in every step"
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
