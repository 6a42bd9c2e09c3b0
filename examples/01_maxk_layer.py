"""A layer of your own on compressed features: MaxK in place of ReLU, and what it moves.

python examples/01_maxk_layer.py --nodes 2000 --degree 20 --k 32
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import maxk


class ResidualConv(nn.Module):
    """x' = x + W mean(MaxK(x)): an aggregation that no ready layer has."""

    def __init__(self, width: int, k: int) -> None:
        super().__init__()
        self.k = k
        self.lin = nn.Linear(width, width)

    def forward(self, x: Tensor, graph: maxk.Graph) -> Tensor:
        """Applies the layer to x [N, D]."""
        kept = maxk.maxk(x, self.k)  # CBSR: k values and k columns a row
        y: Tensor = self.lin(maxk.aggregate(graph, kept, reduce="mean"))
        return x + y


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--degree", type=int, default=10)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--k", type=int, default=8)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    edges = torch.randint(0, arguments.nodes, (2, arguments.nodes * arguments.degree))
    graph = maxk.Graph.from_edge_index(edges, num_nodes=arguments.nodes)  # source above target
    x = torch.randn(arguments.nodes, arguments.width, requires_grad=True)

    kept = maxk.maxk(x, arguments.k)
    print(f"{graph}\n{kept}: {kept.nbytes:,} bytes, dense {x.nbytes:,}")
    for choice in maxk.explain("aggregate", graph, kept):
        print(choice)

    layer = ResidualConv(arguments.width, arguments.k)
    y = layer(x, graph)
    y.square().mean().backward()

    # The definition in plain PyTorch gives the same numbers, forward and backward.
    fast = x.grad
    x.grad = None
    with maxk.implementation("reference"):
        again = layer(x, graph)
        again.square().mean().backward()
    print("largest difference, forward: ", f"{(y - again).abs().max().item():.1e}")
    print("largest difference, backward:", f"{(fast - x.grad).abs().max().item():.1e}")


if __name__ == "__main__":
    main()
