"""Linear layers whose input width is taken from the first input, as PyG's ``in_channels=-1``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter


def is_lazy(parameter: Tensor) -> bool:
    """Whether a parameter waits for the first input."""
    return isinstance(parameter, UninitializedParameter)


def make_linear(
    in_channels: int, out_channels: int, *, bias: bool, glorot: bool = False
) -> nn.Linear:
    """A linear layer; with ``in_channels=-1`` the first input sets its width.

    Args:
        in_channels: width of the input, or -1.
        out_channels: width of the result.
        bias: learn an additive bias.
        glorot: draw a lazy weight by Glorot's rule when it is made.

    Raises:
        ValueError: ``in_channels`` is neither -1 nor positive.
    """
    if in_channels == -1:
        return LazyLinear(out_channels, bias=bias, glorot=glorot)
    if in_channels < 1:
        raise ValueError(f"in_channels must be at least 1, or -1 (lazy), got {in_channels}")
    return nn.Linear(in_channels, out_channels, bias=bias)


class LazyLinear(nn.LazyLinear):
    """``nn.LazyLinear`` that keeps a bias of known size, as PyG does; becomes ``nn.Linear``."""

    def __init__(self, out_channels: int, *, bias: bool, glorot: bool) -> None:
        super().__init__(out_channels, bias=False)
        self.glorot = glorot
        if bias:
            self.bias = nn.Parameter(torch.zeros(out_channels))  # type: ignore[assignment]

    def initialize_parameters(self, input: Tensor) -> None:
        """Makes the weight for the first input, as one that can be trained in any mode."""
        with torch.inference_mode(False), torch.no_grad():
            if is_lazy(self.weight):
                self.in_features = input.shape[-1]
                self.weight.materialize((self.out_features, self.in_features))
                self.reset_parameters()
            elif self.in_features == 0:
                self.in_features = self.weight.shape[1]

    def reset_parameters(self) -> None:
        """Draws the parameters again where their sizes are known."""
        if is_lazy(self.weight) or self.in_features == 0:
            return
        if self.glorot:
            nn.init.xavier_uniform_(self.weight)
        else:
            nn.Linear.reset_parameters(self)
