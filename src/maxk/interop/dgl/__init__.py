"""DGL: its graphs, and our layers in its calling order, ``conv(graph, feat)``."""

from maxk.interop.dgl.conv import GINConv, GraphConv, SAGEConv
from maxk.interop.dgl.graph import from_dgl, to_dgl

__all__ = ["from_dgl", "to_dgl", "SAGEConv", "GraphConv", "GINConv"]
