"""Layers and models: PyG's names and state dicts, CBSR inside."""

from maxk.nn.conv import GCNConv, GINConv, SAGEConv
from maxk.nn.functional import dropout, linear
from maxk.nn.maxk import MaxK
from maxk.nn.models import GCN, GIN, GraphSAGE

__all__ = ["MaxK", "SAGEConv", "GCNConv", "GINConv", "GraphSAGE", "GCN", "GIN", "dropout", "linear"]
