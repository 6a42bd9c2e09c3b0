"""What is measured: suites of graphs, widths and k, as tables."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from maxk.core.errors import ConfigError
from maxk.data.synthetic import SHAPES, SyntheticConfig, generate
from maxk.graph.graph import Graph

#: The k of the paper's kernel figure.
PAPER_KS = (2, 4, 8, 16, 32, 64, 96, 128, 192)
#: The CPU's list goes to D, to show that the plan leaves MaxK's kernels before they lose.
CPU_KS = (4, 8, 16, 32, 64, 96, 128, 192, 256)


@dataclass(frozen=True)
class Case:
    """One graph of a suite, with what is run on it.

    Attributes:
        graph: Name, as rows carry it.
        config: What the seeded generator draws.
        widths: D of the features.
        ks: Kept entries per row; those above a width are left out there.
        layers: Graph convolutions of the epoch benchmark's model; its hidden width is the last of
            ``widths``.
    """

    graph: str
    config: SyntheticConfig
    widths: tuple[int, ...] = (256,)
    ks: tuple[int, ...] = PAPER_KS
    layers: int = 3

    def scaled(self, scale: float) -> Case:
        """Returns the case with ``scale`` times the nodes and edges, and a name that says so."""
        if scale == 1.0:
            return self
        nodes = max(2, round(self.config.nodes * scale))
        degree = min(self.config.degree, nodes - 1)
        config = replace(
            self.config,
            nodes=nodes,
            degree=degree,
            communities=min(self.config.communities, nodes),
        )
        return replace(self, graph=f"{self.graph}@{scale:g}", config=config)

    def draw(self, *, device: torch.device | str = "cpu", seed: int = 0) -> tuple[Graph, Tensor]:
        """Draws the graph on a device, with the community of each node, int64 [N].

        The same seed and kind of device give the same graph.
        """
        drawn = generate(replace(self.config, seed=seed), device=device)
        return Graph.from_edge_index(drawn.edge_index, drawn.num_nodes), drawn.communities

    def build(self, *, device: torch.device | str = "cpu", seed: int = 0) -> Graph:
        """Draws the graph alone."""
        return self.draw(device=device, seed=seed)[0]


def _sized(nodes: int, edges: int) -> SyntheticConfig:
    return SyntheticConfig(nodes=nodes, degree=edges / nodes)


#: Graphs of the size and degree law of the five data sets that the paper trains on.
FIVE = (
    Case("reddit-like", SHAPES["reddit-like"], layers=4),
    Case("proteins-like", SHAPES["proteins-like"]),
    Case("products-like", SHAPES["products-like"]),
    Case("yelp-like", SHAPES["yelp-like"], widths=(256, 384), layers=4),
    Case("flickr-like", SHAPES["flickr-like"]),
)

#: The 24 graphs of the paper's kernel table: nodes and edges.
_TWENTY_FOUR = (
    ("am", 881_680, 5_668_682),
    ("amazon0505", 410_236, 4_878_874),
    ("amazon0601", 403_394, 5_478_357),
    ("artist", 50_515, 1_638_396),
    ("citation", 2_927_963, 30_387_995),
    ("collab", 235_868, 2_358_104),
    ("com-amazon", 334_863, 1_851_744),
    ("dd", 334_925, 1_686_092),
    ("ddi", 4_267, 2_135_822),
    ("flickr", 89_250, 989_006),
    ("ogbn-arxiv", 169_343, 1_166_243),
    ("ogbn-products", 2_449_029, 123_718_280),
    ("ogbn-proteins", 132_534, 79_122_504),
    ("ovcar-8h", 1_889_542, 3_946_402),
    ("ppa", 576_289, 42_463_862),
    ("proteins-full", 43_466, 162_088),
    ("pubmed", 19_717, 99_203),
    ("ppi", 56_944, 818_716),
    ("reddit", 232_965, 114_615_891),
    ("sw-620h", 1_888_584, 3_944_206),
    ("twitter-partial", 580_768, 1_435_116),
    ("yeast", 1_710_902, 3_636_546),
    ("yelp", 716_847, 13_954_819),
    ("youtube", 1_138_499, 5_980_886),
)

SUITES: dict[str, tuple[Case, ...]] = {
    "quick": (Case("tiny", _sized(2_000, 40_000), widths=(64,), ks=(4, 16, 64), layers=2),),
    "cpu": (
        # The features of the first fit a desktop processor's cache, those of the second do not.
        Case("cached", _sized(20_000, 1_770_000), ks=CPU_KS),
        Case("uncached", _sized(200_000, 9_390_000), ks=CPU_KS),
    ),
    "paper": FIVE,
    "paper24": tuple(
        Case(f"{name}-size", _sized(n, e), ks=(16, 32, 64)) for name, n, e in _TWENTY_FOUR
    ),
}


def cases(
    suite: str,
    *,
    graphs: tuple[str, ...] = (),
    scale: float = 1.0,
    ks: tuple[int, ...] = (),
    widths: tuple[int, ...] = (),
) -> tuple[Case, ...]:
    """Returns the cases of a suite.

    Args:
        suite: A key of :data:`SUITES`.
        graphs: Only these graphs of it; all by default.
        scale: Multiplies nodes and edges, for machines on which the suite is too large.
        ks: Kept entries instead of the suite's.
        widths: D instead of the suite's.

    Raises:
        ConfigError: No such suite or graph, a scale that is not positive, or no k up to a width.

    Example:
        >>> [case.graph for case in cases("paper", graphs=("yelp-like",))]
        ['yelp-like']
    """
    if suite not in SUITES:
        raise ConfigError(f"suite must be one of {', '.join(SUITES)}, got {suite!r}")
    if scale <= 0:
        raise ConfigError(f"scale must be positive, got {scale}")
    known = {case.graph: case for case in SUITES[suite]}
    for name in graphs:
        if name not in known:
            raise ConfigError(f"graph must be one of {', '.join(known)} in {suite}, got {name!r}")
    chosen = [known[name] for name in graphs] if graphs else list(known.values())
    found = tuple(
        replace(case.scaled(scale), ks=ks or case.ks, widths=widths or case.widths)
        for case in chosen
    )
    for case in found:
        for width in case.widths:
            if not any(k <= width for k in case.ks):
                raise ConfigError(f"--k must hold a k up to D = {width}, got {case.ks}")
    return found
