"""maxk: graph neural networks trained faster by MaxK, CBSR and row-wise sparse kernels.

The public names, in the order in which data meets them. They are resolved on first use, so that
``import maxk`` and the command line's help cost nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maxk import interop, nn
    from maxk.cbsr import CBSR
    from maxk.core.errors import MaxKError
    from maxk.data.dataset import Dataset
    from maxk.data.load import load
    from maxk.graph.graph import Graph
    from maxk.interop.convert import conversion_report, convert
    from maxk.interop.graph import to_graph
    from maxk.ops.aggregate import aggregate
    from maxk.ops.dispatch import implementation
    from maxk.ops.explain import explain
    from maxk.ops.maxk.op import maxk
    from maxk.ops.norm_maxk.op import layer_norm_maxk
    from maxk.train.config import TrainConfig
    from maxk.train.loop import Trainer

# It notes the forks of this process, and those before the first kernel count too.
importlib.import_module("maxk.core.forks")

__version__ = "0.1.0"

__all__ = [
    "Graph",
    "to_graph",
    "maxk",
    "layer_norm_maxk",
    "CBSR",
    "aggregate",
    "implementation",
    "explain",
    "nn",
    "convert",
    "conversion_report",
    "interop",
    "load",
    "Dataset",
    "Trainer",
    "TrainConfig",
    "MaxKError",
]

_HOMES = {
    "Graph": "maxk.graph.graph",
    "to_graph": "maxk.interop.graph",
    "maxk": "maxk.ops.maxk.op",
    "layer_norm_maxk": "maxk.ops.norm_maxk.op",
    "CBSR": "maxk.cbsr",
    "aggregate": "maxk.ops.aggregate",
    "implementation": "maxk.ops.dispatch",
    "explain": "maxk.ops.explain",
    "convert": "maxk.interop.convert",
    "conversion_report": "maxk.interop.convert",
    "load": "maxk.data.load",
    "Dataset": "maxk.data.dataset",
    "Trainer": "maxk.train.loop",
    "TrainConfig": "maxk.train.config",
    "MaxKError": "maxk.core.errors",
}

_ROOMS = ("nn", "interop")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"maxk.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'maxk' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_ROOMS])
