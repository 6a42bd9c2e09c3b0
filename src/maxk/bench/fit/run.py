"""How well one hidden layer fits a function, over its width: MaxK compared with ReLU.

    y = b + sum_j v_j act(w_j x + c_j)

The networks of all seeds are trained as one batch, on a grid, and evaluated on a finer one that
holds none of its points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from maxk.core.errors import ConfigError
from maxk.measure import rows
from maxk.measure.environment import environment
from maxk.nn.functional import dense
from maxk.nn.nonlinearities import Activation

#: Points of the training grid in each dimension, by number of dimensions.
_POINTS = {1: 256, 2: 32}

#: What is fitted, on [-1, 1] in each dimension, and in how many.
FUNCTIONS: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "square": (1, lambda x: x[:, 0].square()),
    "sin": (1, lambda x: torch.sin(2 * math.pi * x[:, 0])),
    "abs": (1, lambda x: x[:, 0].abs()),
    "surface": (2, lambda x: torch.sin(math.pi * x[:, 0]) * torch.cos(math.pi * x[:, 1])),
}


@dataclass(frozen=True)
class Rule:
    """How many entries MaxK keeps at each width.

    Attributes:
        share: k is this share of the width, rounded up; None where k is fixed.
        fixed: k, or the whole width where that is less; None where k is a share.
    """

    share: Fraction | None = None
    fixed: int | None = None

    @staticmethod
    def parse(text: str) -> Rule:
        """Reads ``1/4`` as a share and ``2`` as a fixed number.

        Raises:
            ConfigError: it is neither, or the share is not in (0, 1].

        Example:
            >>> Rule.parse("1/4").k(10), Rule.parse("2").k(10)
            (3, 2)
        """
        try:
            if text.isdecimal() and int(text) > 0:
                return Rule(fixed=int(text))
            share = Fraction(text)
        except (ValueError, ZeroDivisionError):
            share = Fraction(0)
        if not 0 < share <= 1:
            raise ConfigError(
                f"--k must be a share of the width, as 1/4, or a number, as 2, got {text!r}"
            )
        return Rule(share=share)

    def k(self, width: int) -> int:
        """Entries kept of a width."""
        if self.fixed is not None:
            return min(self.fixed, width)
        assert self.share is not None
        return math.ceil(self.share * width)

    def __str__(self) -> str:
        return f"k = {self.fixed}" if self.share is None else f"k = {self.share} of the width"


@dataclass(frozen=True)
class Fit:
    """One trained network.

    Attributes:
        function: Of :data:`FUNCTIONS`.
        nonlinearity: ``relu`` or ``maxk``.
        rule: How k follows the width, in words; empty for ReLU.
        width: Hidden units.
        k: Entries kept; None for ReLU.
        seed: Of the first weights.
        rmse: Root of the mean squared error between the points of training.
        worst: Largest error there.
        steps: Of Adam.
        device: ``cpu``, or the GPU's name.
        torch: Version.
        commit: Of this package.
        date: Day, ISO 8601.
    """

    function: str
    nonlinearity: Literal["relu", "maxk"]
    rule: str
    width: int
    k: int | None
    seed: int
    rmse: float
    worst: float
    steps: int
    device: str = "cpu"
    torch: str = ""
    commit: str = "unknown"
    date: str = ""


class Networks(nn.Module):
    """Networks with one hidden layer, one per seed.

    Args:
        inputs: Dimensions of x, d.
        width: Hidden units, H.
        seeds: Number of networks, S; each draws its weights from its own seed.
        activation: Applied to rows of H.

    Shape:
        input [N, d]; output [S, N].
    """

    def __init__(self, inputs: int, width: int, seeds: int, activation: Activation) -> None:
        super().__init__()
        drawn = [torch.Generator().manual_seed(seed) for seed in range(seeds)]

        def draw(*shape: int, bound: float) -> nn.Parameter:
            rows = [torch.rand(shape, generator=g) * 2 * bound - bound for g in drawn]
            return nn.Parameter(torch.stack(rows))

        self.weight = draw(inputs, width, bound=1.0)
        self.bias = draw(1, width, bound=1.0)
        self.out = draw(width, 1, bound=width**-0.5)
        self.offset = nn.Parameter(torch.zeros(seeds, 1, 1))
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Values of every network."""
        h = torch.baddbmm(self.bias, x.expand(self.weight.shape[0], *x.shape), self.weight)
        kept = dense(self.activation(h.reshape(-1, h.shape[-1]))).reshape(h.shape)
        y: Tensor = torch.baddbmm(self.offset, kept, self.out)
        return y[..., 0]


def grid(dimensions: int, points: int) -> Tensor:
    """A regular grid [points ** d, d] on [-1, 1] in each dimension.

    Example:
        >>> grid(1, 3).tolist()
        [[-1.0], [0.0], [1.0]]
    """
    axis = torch.linspace(-1, 1, points)
    return torch.cartesian_prod(*[axis] * dimensions).reshape(-1, dimensions)


def fit(
    function: str,
    width: int,
    rule: Rule | None,
    *,
    seeds: int = 5,
    steps: int = 2000,
    lr: float = 0.02,
    device: torch.device | str = "cpu",
) -> list[Fit]:
    """Trains networks of one width by Adam, the learning rate falling to 0 along a cosine.

    Args:
        function: Of :data:`FUNCTIONS`.
        width: Hidden units.
        rule: How many MaxK keeps; None is ReLU.
        seeds: Networks.
        steps: Full-batch steps.
        lr: First learning rate.
        device: Where.

    Returns:
        One result per seed.

    Raises:
        ConfigError: the function is unknown.

    Example:
        >>> one, two = fit("square", 8, Rule.parse("1/4"), seeds=2, steps=200)
        >>> one.k, one.rmse < 0.2
        (2, True)
    """
    if function not in FUNCTIONS:
        raise ConfigError(f"--function must be one of {', '.join(FUNCTIONS)}, got {function!r}")
    dimensions, target = FUNCTIONS[function]
    points = _POINTS[dimensions]
    x = grid(dimensions, points).to(device)
    k = None if rule is None else rule.k(width)
    nonlinearity: Literal["relu", "maxk"] = "relu" if k is None else "maxk"
    networks = Networks(dimensions, width, seeds, Activation(nonlinearity, width, k or 1))
    networks.to(device)
    optimizer: Any = torch.optim.Adam(networks.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    y = target(x)
    for _ in range(steps):
        optimizer.zero_grad()
        # A sum over the networks: none of them affects another.
        loss = (networks(x) - y).square().mean(dim=1).sum()
        loss.backward()
        optimizer.step()
        schedule.step()
    between = grid(dimensions, 4 * points + 1).to(device)
    with torch.no_grad():
        error = (networks(between) - target(between)).double()
    facts = environment(device)
    where = {name: facts[name] for name in ("device", "torch", "commit", "date")}
    rmse, worst = error.square().mean(dim=1).sqrt(), error.abs().amax(dim=1)
    return [
        Fit(
            function=function,
            nonlinearity=nonlinearity,
            rule="" if rule is None else str(rule),
            width=width,
            k=k,
            seed=seed,
            rmse=float(rmse[seed]),
            worst=float(worst[seed]),
            steps=steps,
            **where,
        )
        for seed in range(seeds)
    ]


def write(out: Path, fits: Sequence[Fit]) -> None:
    """Writes ``fit.jsonl`` and ``fit.csv`` into a folder.

    Raises:
        DataError: It cannot be written.
    """
    rows.write(out / "fit.jsonl", fits)
    rows.write_csv(out / "fit.csv", Fit, fits)
