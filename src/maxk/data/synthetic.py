"""Seeded random graphs with a chosen degree law, planted communities, and features that tell them.

One way for everybody: ``load("synthetic")`` trains on them, the benchmarks time kernels on them.
All steps are tensor operations on the wanted device, so 100 million edges take seconds on a GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from maxk.core.errors import DataError

Law = Literal["lognormal", "power", "regular"]
LAWS: tuple[Law, ...] = ("lognormal", "power", "regular")
Order = Literal["random", "community"]
ORDERS: tuple[Order, ...] = ("random", "community")

# Lost to repeated pairs and loops in the first draw, hubs' edges are drawn again at most so often.
MAX_DRAWS = 12


@dataclass(frozen=True)
class SyntheticConfig:
    """What graph to draw.

    Attributes:
        nodes: N.
        degree: Mean degree, E / N. Each undirected edge is two directed ones.
        law: Degree law: ``"lognormal"`` (spread ``sigma``), ``"power"`` (density falling with
            ``exponent``), or ``"regular"``, where all degrees agree but for a few edges.
        sigma: Standard deviation of ln(degree) for ``"lognormal"``; real graphs have 0.9 to 1.25.
        exponent: Exponent of the power law, above 2.
        max_degree: Clip of the law, not below ``degree``; N - 1 at most and by default.
        communities: Number of equally large communities, which are also the classes.
        homophily: Share of edges that are drawn inside a community.
        order: ``"random"`` numbers nodes at random: no locality to lean on. ``"community"`` gives
            each community a range of ids.
        features: F, feature columns.
        signal: Distance of a community's mean feature vector from 0, in standard deviations of the
            noise around it. At 1.5 features alone are ambiguous and neighbours settle the class.
        seed: Same seed and same kind of device, same graph.

    Raises:
        DataError: a value is out of range.
    """

    nodes: int = 10_000
    degree: float = 20.0
    law: Law = "lognormal"
    sigma: float = 1.15
    exponent: float = 2.5
    max_degree: int | None = None
    communities: int = 10
    homophily: float = 0.7
    order: Order = "random"
    features: int = 64
    signal: float = 1.5
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed, good in (
            ("nodes", ">= 2", self.nodes >= 2),
            ("degree", f"in (0, nodes - 1 = {self.nodes - 1}]", 0 < self.degree < self.nodes),
            ("law", f"one of {', '.join(LAWS)}", self.law in LAWS),
            ("sigma", ">= 0", 0 <= self.sigma < math.inf),
            ("exponent", "> 2", 2 < self.exponent < math.inf),
            (
                "max_degree",
                f"at least the mean degree, {self.degree}",
                self.max_degree is None or self.max_degree >= self.degree,
            ),
            ("communities", f"in 1..{self.nodes}", 1 <= self.communities <= self.nodes),
            ("homophily", "in [0, 1]", 0 <= self.homophily <= 1),
            ("order", f"one of {', '.join(ORDERS)}", self.order in ORDERS),
            ("features", ">= 1", self.features >= 1),
            ("signal", ">= 0", 0 <= self.signal < math.inf),
        ):
            if not good:
                raise DataError(f"synthetic: {name} must be {allowed}, got {getattr(self, name)!r}")

    @property
    def edges(self) -> int:
        """E, directed edges requested: an even number near nodes * degree."""
        return 2 * round(self.nodes * self.degree / 2)


def _shape(
    nodes: int, edges: int, sigma: float, max_degree: int | None, classes: int, features: int
) -> SyntheticConfig:
    return SyntheticConfig(
        nodes=nodes,
        degree=edges / nodes,
        sigma=sigma,
        max_degree=max_degree,
        communities=classes,
        features=features,
    )


# N, E and spread of public benchmark graphs. Sigma and clip of the first three reproduce published
# means, deviations and maxima; the others have the same law with a median of 0.6 means.
SHAPES: dict[str, SyntheticConfig] = {
    #                             N          E     sigma  max degree  C    F
    "reddit-like": _shape(232_965, 101_283_392, 1.148, 21_657, 41, 602),
    "proteins-like": _shape(132_534, 79_122_504, 0.889, 7_750, 112, 8),
    "products-like": _shape(2_449_029, 123_718_280, 1.240, 17_481, 47, 100),
    "yelp-like": _shape(716_847, 13_954_818, 1.0, None, 100, 300),
    "flickr-like": _shape(89_250, 899_756, 1.0, None, 7, 500),
}


@dataclass(frozen=True)
class SyntheticGraph:
    """A drawn graph.

    Attributes:
        edge_index: int64 [2, E]; both directions of each edge, no loops, no repeats.
        communities: int64 [N], the community of each node.
        num_nodes: N.
    """

    edge_index: Tensor
    communities: Tensor
    num_nodes: int


def generate(config: SyntheticConfig, *, device: torch.device | str = "cpu") -> SyntheticGraph:
    """Draw a graph.

    A configuration model: each node has as many edge ends as its drawn degree. With probability
    ``homophily`` an edge is closed inside its community, otherwise with any node. Loops and
    repeated edges are thrown away and drawn again until ``config.edges`` distinct ones are there;
    a graph too dense for that keeps fewer.

    Args:
        config: What to draw.
        device: where; the random numbers, and so the graph, depend on the kind of device.

    Example:
        >>> from maxk.data.synthetic import SyntheticConfig, generate
        >>> graph = generate(SyntheticConfig(nodes=1000, degree=8))
        >>> graph.edge_index.shape, graph.communities.unique().numel()
        (torch.Size([2, 8000]), 10)
    """
    random = torch.Generator(device).manual_seed(config.seed)
    nodes, pairs = config.nodes, config.edges // 2
    # Until the last step node ids run through the communities in order.
    community = torch.arange(nodes, device=device) * config.communities // nodes
    ends = _edge_ends(config, random)
    keys = torch.empty(0, dtype=torch.int64, device=device)
    for _ in range(MAX_DRAWS):
        missing = pairs - keys.numel()
        if missing <= 0:
            break
        drawn = None
        if keys.numel():
            size = (min(2 * missing + 64, ends.shape[1]),)
            drawn = torch.randint(ends.shape[1], size, generator=random, device=ends.device)
        source, target = _close(
            ends if drawn is None else ends[:, drawn.sort()[0]], community, config, random
        )
        fresh = torch.minimum(source, target) * nodes + torch.maximum(source, target)
        keys = _distinct(torch.cat([keys, fresh[source != target]]))
    del ends
    if keys.numel() > pairs:
        chosen = torch.randperm(keys.numel(), generator=random, device=keys.device)[:pairs]
        keys = keys[chosen.sort()[0]]
    low = torch.div(keys, nodes, rounding_mode="floor")
    high = keys - low * nodes
    del keys
    if config.order == "random":
        rename = torch.randperm(nodes, generator=random, device=community.device)
        low, high = rename[low], rename[high]
        community = torch.empty_like(community).scatter_(0, rename, community)
    edge_index = torch.stack([torch.cat([low, high]), torch.cat([high, low])])
    return SyntheticGraph(edge_index, community, nodes)


def node_features(config: SyntheticConfig, communities: Tensor) -> Tensor:
    """Draw features: the community's centre, ``signal`` away from 0, plus standard normal noise.

    Args:
        config: ``features``, ``signal``, ``communities`` and ``seed`` are used.
        communities: int64 [N], as :func:`generate` returns it.

    Returns:
        float32 [N, F].
    """
    random = torch.Generator(communities.device).manual_seed(config.seed + 1)
    size, device = config.features, communities.device
    kind: Any = {"dtype": torch.float32, "device": device}
    centres = torch.randn(config.communities, size, generator=random, **kind)
    centres *= config.signal / centres.norm(dim=1, keepdim=True)
    noise = torch.randn(communities.numel(), size, generator=random, **kind)
    return noise.add_(centres[communities])


def parse_spec(spec: str) -> SyntheticConfig:
    """Read ``"synthetic"``, ``"synthetic:nodes=1000,law=power"`` or ``"synthetic:flickr-like"``.

    After the colon follow, separated by commas, at most one of the named shapes, which comes first,
    and ``name=value`` pairs, whose names are the fields of :class:`SyntheticConfig`.

    Raises:
        DataError: a shape, name or value is unknown or out of range.
    """
    config = SyntheticConfig()
    body = spec.partition(":")[2]
    allowed = {field.name: str(field.type) for field in fields(SyntheticConfig)}
    changes: dict[str, object] = {}
    for position, part in enumerate(filter(None, (item.strip() for item in body.split(",")))):
        name, equals, text = (piece.strip() for piece in part.partition("="))
        if not equals:
            if position or name not in SHAPES:
                raise DataError(
                    f"synthetic: expected name=value or, first, one of {', '.join(SHAPES)}, "
                    f"got {part!r}"
                )
            config = SHAPES[name]
            continue
        if name not in allowed:
            raise DataError(
                f"synthetic: unknown option {name!r}; the options are {', '.join(allowed)}"
            )
        changes[name] = _value(name, text, allowed[name])
    return replace(config, **changes)  # type: ignore[arg-type]


def _value(name: str, text: str, kind: str) -> object:
    if kind not in ("float", "int", "int | None"):
        return text
    try:
        return float(text) if kind == "float" else int(text)
    except ValueError as error:
        wanted = "a number" if kind == "float" else "a whole number"
        raise DataError(f"synthetic: {name} must be {wanted}, got {text!r}") from error


def _edge_ends(config: SyntheticConfig, random: torch.Generator) -> Tensor:
    """int64 [2, E / 2] node ids; each node is in it about as often as its degree says.

    The node ids rise along it, and a column's two ends belong to one node, or to neighbours.
    """
    nodes, device = config.nodes, random.device
    if config.law == "regular":
        weight = torch.ones(nodes, dtype=torch.float64, device=device)
    elif config.law == "power":
        uniform = torch.rand(nodes, dtype=torch.float64, generator=random, device=device)
        weight = (1 - uniform) ** (-1 / (config.exponent - 1))
    else:
        normal = torch.randn(nodes, dtype=torch.float64, generator=random, device=device)
        weight = (config.sigma * normal).exp()
    limit = min(config.max_degree or nodes - 1, nodes - 1)
    # Clipping moves the mean, so scale and clip until the sum is right.
    for _ in range(20):
        weight = (weight * (config.edges / weight.sum())).clamp(min(1.0, config.degree), limit)
    total = weight.cumsum(0)
    # Rounding the running sum keeps every degree within one of its weight, and the sum exact.
    bounds = (total * (config.edges / total[-1])).round().long()
    bounds[-1] = config.edges
    degrees = torch.diff(bounds, prepend=bounds.new_zeros(1))
    ids = torch.arange(nodes, device=device)
    owners = torch.repeat_interleave(ids, degrees, output_size=config.edges)
    return owners.view(-1, 2).T


def _close(
    ends: Tensor, community: Tensor, config: SyntheticConfig, random: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Join first ends to shuffled second ends, inside a community or anywhere."""
    count = ends.shape[1]
    source, target = ends
    draw = torch.rand(count, generator=random, device=ends.device, dtype=torch.float64)
    inside = draw < config.homophily
    ours = target[inside]
    # Sorting by community plus a random fraction shuffles within the communities.
    shuffle = torch.rand(ours.numel(), generator=random, device=ends.device, dtype=torch.float64)
    order = torch.argsort(community[ours] + shuffle)
    others = target[~inside]
    anywhere = torch.randperm(others.numel(), generator=random, device=ends.device)
    joined = torch.empty_like(source)
    joined[inside] = ours[order]
    joined[~inside] = others[anywhere]
    return source, joined


def _distinct(keys: Tensor) -> Tensor:
    """Sorted distinct keys; numpy sorts several times faster than torch on the CPU."""
    if keys.device.type == "cpu":
        keys.numpy().sort()
    else:
        keys = keys.sort()[0]
    distinct: Tensor = torch.unique_consecutive(keys)
    return distinct
