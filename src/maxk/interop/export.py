"""A trained model for those who do not have maxk, and for ``torch.export``."""

from __future__ import annotations

import json
import keyword
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from maxk.graph.graph import Graph
from maxk.interop import exported
from maxk.nn.models import GCN, GIN, GraphSAGE

if TYPE_CHECKING:
    from torch.export import ExportedProgram

KINDS: dict[type[nn.Module], str] = {GraphSAGE: "sage", GCN: "gcn", GIN: "gin"}


def to_pyg_model(model: nn.Module) -> exported.Network:
    """A network of PyTorch and PyG layers with the weights of a model, and its logits.

    MaxK becomes a mask of the k largest entries on dense rows; nothing else differs.

    Args:
        model: :class:`maxk.nn.GraphSAGE`, :class:`~maxk.nn.GCN` or :class:`~maxk.nn.GIN`.

    Raises:
        TypeError: it is another model.

    Example:
        >>> import torch, maxk
        >>> model = maxk.nn.GraphSAGE(4, 8, 2, 3, k=2).eval()
        >>> x, edge_index = torch.randn(3, 4), torch.tensor([[0, 1, 2], [1, 2, 0]])
        >>> theirs = maxk.interop.to_pyg_model(model)
        >>> graph = maxk.Graph.from_edge_index(edge_index)
        >>> torch.allclose(theirs(x, edge_index), model(x, graph), atol=1e-6)
        True
    """
    network = exported.Network(**_settings(model))
    weight = next(model.parameters())
    network = network.to(weight.device, weight.dtype)
    network.load_state_dict(model.state_dict())
    return network.train(model.training)


def export_pyg(model: nn.Module, path: str | Path) -> tuple[Path, Path]:
    """Writes the weights of a model as safetensors, and beside them the Python file that runs them.

    The Python file needs torch, PyG and safetensors only: ``from NAME import load``.

    Args:
        model: as :func:`to_pyg_model` takes it.
        path: where the weights go, ``NAME.safetensors``.

    Returns:
        Paths of the weights and of the Python file, whose name is that of the weights where Python
        can import it: ``my model.safetensors`` comes with ``my_model.py``.

    Raises:
        TypeError: it is another model.
        ValueError: ``path`` does not end in ``.safetensors``.
        OSError: a file cannot be written.
    """
    from safetensors.torch import save_file

    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(
            f"path must end in .safetensors, got {path}; for example model.safetensors"
        )
    settings = json.dumps(_settings(model))
    # Copies, since safetensors refuses tensors that share memory, as tied weights do.
    weights = {
        name: t.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, t in model.state_dict().items()
    }
    code = path.with_name(f"{_module_name(path.stem)}.py")
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, path, metadata={exported.KEY: settings})
    code.write_bytes(Path(exported.__file__).read_bytes())
    return path, code


def _module_name(stem: str) -> str:
    """A name that ``import`` accepts and that hides no module which the file itself needs."""
    name = re.sub(r"\W", "_", stem)
    taken = {*sys.stdlib_module_names, "torch", "torch_geometric", "safetensors", "numpy", "maxk"}
    if name in taken or keyword.iskeyword(name) or not name.isidentifier():
        return f"model_{name}"
    return name


def export_torch(model: nn.Module, x: Tensor, graph: Graph) -> ExportedProgram:
    """The model on one graph as a ``torch.export`` program from features to logits.

    The graph is part of the program, and N with it. Our kernels stay single operations: a process
    that loads the program imports ``maxk.ops.library`` first.

    Args:
        model: any module ``model(x, graph)`` of our layers; exported in its present mode.
        x: features of the shape and dtype to come, dense.
        graph: the graph.

    Raises:
        TypeError: ``x`` is sparse, which a program cannot take.
    """
    if x.layout != torch.strided:
        raise TypeError(f"x must be dense to be exported, got {x.layout}; call x.to_dense()")
    for reduce in ("sum", "mean", "gcn") if graph.num_src == graph.num_dst else ("sum", "mean"):
        # A program holds what a graph derives on demand, but cannot derive it.
        graph.prepare(reduce, torch.float64 if x.dtype == torch.float64 else torch.float32)
    with torch.no_grad():
        return torch.export.export(_OnGraph(model, graph), (x,), strict=False)


class _OnGraph(nn.Module):
    def __init__(self, model: nn.Module, graph: Graph) -> None:
        super().__init__()
        self.model, self.graph = model, graph
        self.train(model.training)

    def forward(self, x: Tensor) -> Any:
        return self.model(x, self.graph)


def _settings(model: nn.Module) -> dict[str, Any]:
    if type(model) not in KINDS:
        raise TypeError(
            f"model must be a maxk.nn.GraphSAGE, GCN or GIN, got {type(model).__name__}; a "
            "converted PyG model gives its state dict to the PyG model it came from"
        )
    network: Any = model
    norms = {nn.LayerNorm: "layer", nn.BatchNorm1d: "batch", nn.Identity: None}
    return {
        "model": KINDS[type(model)],
        "in_channels": network.lin_in.in_features,
        "hidden_channels": network.lin_in.out_features,
        "num_layers": len(network.layers),
        "out_channels": network.lin_out.out_features,
        "nonlinearity": network.nonlinearity,
        "k": network.k,
        "groups": network.activation.groups,
        "threshold": network.activation.threshold,
        "dropout": network.dropout,
        "norm": norms[type(network.norms[0])],
        "residual": network.residual,
    }
