"""scikit-learn's handwritten digits as a nearest-neighbour graph: real data inside a dependency."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from maxk.data.source import Source
from maxk.graph.files import Edges

if TYPE_CHECKING:
    from numpy.typing import NDArray

NEIGHBOURS = 10
TRAIN, VAL = 100, 300


def digits() -> Source:
    """The 1,797 digits of 8 x 8 pixels, each linked with its 10 nearest ones.

    Features are the pixels, scaled to [0, 1]; distance is Euclidean. A pair is linked, in both
    directions, where either is among the other's nearest, so the graph is symmetric and has no
    self-loops.
    """
    from sklearn.datasets import load_digits
    from sklearn.neighbors import kneighbors_graph

    bunch: Any = load_digits()
    x: NDArray[np.float32] = (bunch.data / 16).astype(np.float32)
    nearest: Any = kneighbors_graph(x, NEIGHBOURS, include_self=False)
    linked = nearest.maximum(nearest.T).tocoo()
    edge_index = np.stack([linked.col, linked.row]).astype(np.int64)
    edges = Edges(torch.from_numpy(edge_index), num_src=x.shape[0], num_dst=x.shape[0])
    return Source("digits", "digits", edges, x, bunch.target, num_classes=10, metric="accuracy")
