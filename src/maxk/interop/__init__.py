"""Other libraries' graphs, layers and models, to ours and back.

Nothing here imports PyG, DGL, SciPy or NetworkX before a function needs it, and what is given to
:func:`~maxk.interop.graph.to_graph` is known by its methods, not by its class.
"""

from maxk.interop.convert import conversion_report, convert
from maxk.interop.dgl.graph import to_dgl
from maxk.interop.export import export_pyg, export_torch, to_pyg_model
from maxk.interop.graph import to_graph
from maxk.interop.message_passing import FusedMessage, propagate
from maxk.interop.networkx import to_networkx
from maxk.interop.pyg import to_adj_t, to_pyg
from maxk.interop.scipy import to_scipy

__all__ = [
    "to_graph",
    "to_pyg",
    "to_adj_t",
    "to_scipy",
    "to_networkx",
    "to_dgl",
    "convert",
    "conversion_report",
    "FusedMessage",
    "propagate",
    "to_pyg_model",
    "export_pyg",
    "export_torch",
]
