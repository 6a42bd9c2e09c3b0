"""A DGL network, its layers taken from maxk.interop.dgl: the same calls, MaxK in between.

python examples/04_from_dgl.py --dataset path/to/amazon_photo.npz --hidden 256 --k 32
"""

from __future__ import annotations

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn

import maxk
from maxk.interop.dgl import SAGEConv  # in place of: from dgl.nn import SAGEConv


class SAGE(nn.Module):
    """DGL's example: dropout and activation between layers that are called (graph, feat)."""

    def __init__(self, width_in: int, width: int, width_out: int, k: int) -> None:
        super().__init__()
        widths = [width_in, width, width, width_out]
        self.layers = nn.ModuleList(SAGEConv(*p, "mean") for p in itertools.pairwise(widths))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.activation = maxk.nn.MaxK(k, compressed=True)  # in place of: nn.ReLU()

    def forward(self, graph: object, h: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers[:-1], self.norms, strict=True):
            h = self.activation(norm(layer(graph, h)))
            h = maxk.nn.dropout(h, 0.5, self.training)  # acts on the k kept values
        return self.layers[-1](graph, h)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="digits", help="a name or the path of a file")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=60)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    data = maxk.load(arguments.dataset, undirected=True)
    try:
        graph = maxk.interop.to_dgl(data.graph)  # stands for a DGLGraph of yours
    except Exception as error:  # DGL's wheels fail in many ways beside a newer torch
        raise SystemExit(
            f"this example needs DGL, which does not import here ({error}); its layers also take "
            "a maxk.Graph, which needs no DGL"
        ) from None
    x = data.x.to_dense()
    model = SAGE(x.shape[1], arguments.hidden, data.num_classes, arguments.k)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    best_val, best_test = -1.0, 0.0
    for _ in range(arguments.epochs):
        model.train()
        optimizer.zero_grad()
        logits = model(graph, x)
        F.cross_entropy(logits[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            right = model(graph, x).argmax(dim=1) == data.y
        if (val := right[data.val_mask].float().mean().item()) > best_val:
            best_val, best_test = val, right[data.test_mask].float().mean().item()
    print(f"test accuracy {best_test:.3f}")


if __name__ == "__main__":
    main()
