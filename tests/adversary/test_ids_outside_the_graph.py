"""A node id outside the graph reached native code."""

from __future__ import annotations

import pytest
import torch

import maxk
from adversary.tiny import graph_of, same


@pytest.mark.parametrize(("pair", "text"), [
    ((3, 0), r"source id 3 at position 1.*ids 0\.\.2"),
    ((-1, 0), r"source id -1 at position 1.*ids 0\.\.2"),
    ((0, 3), r"target id 3 at position 1.*ids 0\.\.2"),
    ((2**40, 0), rf"source id {2**40} at position 1.*ids 0\.\.2"),
])  # fmt: skip
def test_an_id_outside_the_graph_is_refused_and_harms_nothing(implementation, device, pair, text):
    with pytest.raises(ValueError, match=text):
        graph_of([(0, 1), pair], 3, device=device)
    x = torch.ones(3, 1, device=device)
    edges = torch.tensor([(0, 1), pair], device=device).t().contiguous()
    with pytest.raises(ValueError, match=text):
        maxk.aggregate(edges, x, "sum", implementation=implementation)
    with pytest.raises(ValueError, match=r"source id 3 at position 0.*ids 0\.\.2"):
        maxk.Graph.from_csr(
            torch.tensor([0, 1], device=device), torch.tensor([3], device=device), num_src=3
        )
    # The process, and a GPU's context, still serve the next call.
    graph = graph_of([(0, 1)], 3, device=device)
    same(maxk.aggregate(graph, x, "sum", implementation=implementation), [[0], [1], [0]])
