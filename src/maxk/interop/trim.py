"""Models of PyG that drop sampled nodes and edges layer by layer, on CBSR."""

from __future__ import annotations

from typing import Any

from torch import nn

from maxk.cbsr import CBSR
from maxk.graph.graph import Graph


class TrimToLayer(nn.Module):
    """PyG's ``TrimToLayer`` for features that may be CBSR.

    Args:
        inner: PyG's module.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(
        self, layer: int, nodes: Any, edges: Any, x: Any, edge_index: Any, edge_attr: Any = None
    ) -> tuple[Any, Any, Any]:
        """The features, edges and edge data that a layer still needs."""
        if isinstance(edge_index, Graph):
            raise ValueError(
                "num_sampled_nodes_per_hop trims the edge_index of a sampler, got a maxk.Graph; "
                "pass the sampler's edge_index"
            )
        if not isinstance(x, CBSR):
            return self.inner(layer, nodes, edges, x, edge_index, edge_attr)  # type: ignore[no-any-return]
        values, edge_index, edge_attr = self.inner(
            layer, nodes, edges, x.values, edge_index, edge_attr
        )
        columns = x.columns[: values.shape[0]]
        return CBSR(values, columns, x.width, in_range=True), edge_index, edge_attr
