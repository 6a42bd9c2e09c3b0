"""A network trained by maxk, in plain PyTorch and PyG; this file needs nothing of maxk.

    from model import load                      # this file, saved as model.py
    network = load("model.safetensors")         # in eval mode
    logits = network(data.x, data.edge_index)   # and data.edge_weight, where it was trained on one

An edge s -> t is a column (s, t) of ``edge_index``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

KEY = "maxk_export"


class Network(nn.Module):
    """GraphSAGE, GCN or GIN: linear, layers of activation and neighbourhood, norm, linear.

    Args:
        model: "sage", "gcn" or "gin".
        in_channels: width of the features.
        hidden_channels: D.
        num_layers: number of aggregations.
        out_channels: width of the logits.
        nonlinearity: "maxk", "maxk-grouped", "fatrelu", "dropout-relu" or "relu".
        k: entries of a row that the nonlinearity keeps.
        groups: of "maxk-grouped".
        threshold: of "fatrelu".
        dropout: probability behind the activation, in training.
        norm: "layer", "batch" or None.
        residual: add each layer's input to its result.

    Shape:
        x [N, in_channels], dense or sparse CSR; edge_index [2, E]; result [N, out_channels].
    """

    def __init__(
        self,
        model: str,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int,
        nonlinearity: str,
        k: int,
        groups: int,
        threshold: float | None,
        dropout: float,
        norm: str | None,
        residual: bool,
    ) -> None:
        super().__init__()
        from torch_geometric.nn import SimpleConv

        self.model, self.nonlinearity, self.dropout = model, nonlinearity, dropout
        self.k, self.groups, self.threshold, self.residual = k, groups, threshold, residual
        self.neighbours = SimpleConv(aggr="mean" if model == "sage" else "sum")
        layer = {"sage": _SAGE, "gcn": nn.Linear, "gin": _GIN}[model]
        norms: dict[str | None, Any] = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d}
        norms[None] = nn.Identity
        self.lin_in = nn.Linear(in_channels, hidden_channels)
        self.layers = nn.ModuleList(
            layer(hidden_channels, hidden_channels) for _ in range(num_layers)
        )
        self.norms = nn.ModuleList(norms[norm](hidden_channels) for _ in range(num_layers))
        self.lin_out = nn.Linear(hidden_channels, out_channels)

    def activate(self, h: Tensor) -> Tensor:
        """Nonlinearity and dropout, dense."""
        rows, width = h.shape
        if self.nonlinearity == "maxk":
            h = _largest(h, self.k)
        elif self.nonlinearity == "maxk-grouped":
            blocks = h.reshape(rows * self.groups, width // self.groups)
            h = _largest(blocks, self.k // self.groups).reshape(rows, width)
        elif self.nonlinearity == "fatrelu" and self.threshold is not None:
            h = F.threshold(h, self.threshold, 0.0)
        elif self.nonlinearity == "fatrelu" and self.k < width and rows:
            kept = h.detach().reshape(-1).topk(rows * self.k + 1, sorted=False).values
            h = h.where(h > kept.amin().clamp(min=0), 0)
        else:
            h = h.relu()
        if self.nonlinearity == "dropout-relu":
            h = F.dropout(h, 1.0 - self.k / width, self.training)
        return F.dropout(h, self.dropout, self.training)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Logits of every node."""
        if self.model == "gcn":
            from torch_geometric.nn.conv.gcn_conv import gcn_norm

            edge_index, edge_weight = gcn_norm(
                edge_index, edge_weight, x.shape[0], dtype=self.lin_in.weight.dtype
            )
        if x.layout == torch.strided:
            h = self.lin_in(x)
        else:
            h = x @ self.lin_in.weight.t() + self.lin_in.bias
        if self.model != "sage":
            h = h.relu()
        total = h
        layer: Any
        for layer, norm in zip(self.layers, self.norms, strict=True):
            if self.model == "sage":
                h = self.activate(h)
                y = layer.lin_l(self.neighbours(h, edge_index, edge_weight)) + layer.lin_r(h)
            else:
                h = self.activate(layer.lin(h) if self.model == "gin" else layer(h))
                own = (1 + layer.eps) * h if self.model == "gin" else 0
                y = self.neighbours(h, edge_index, edge_weight) + own
            total = total + y if self.residual else y
            h = norm(total)
        logits: Tensor = self.lin_out(h)
        return logits


class _SAGE(nn.Module):
    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.lin_l = nn.Linear(width_in, width)
        self.lin_r = nn.Linear(width_in, width, bias=False)


class _GIN(nn.Module):
    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.lin = nn.Linear(width_in, width)
        self.eps = nn.Parameter(torch.zeros(1))


def _largest(h: Tensor, k: int) -> Tensor:
    """Keeps the k largest entries of every row, of equal ones the first; NaN is the largest."""
    rows, nan = h.detach(), h.isnan()
    least = rows.topk(k, dim=1).values[:, -1:]
    larger = (rows > least) | (nan & ~least.isnan())
    equal = (rows == least) | (nan & least.isnan())
    missing = k - larger.sum(1, keepdim=True)
    return h.where(larger | (equal & (equal.cumsum(1) <= missing)), 0.0)


def load(path: str | Path) -> Network:
    """The network whose weights lie in a safetensors file, in eval mode."""
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        settings = json.loads(file.metadata()[KEY])
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    network = Network(**settings).to(next(iter(weights.values())).dtype)
    network.load_state_dict(weights)
    return network.eval()
