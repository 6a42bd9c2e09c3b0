"""Data sets of PyTorch Geometric, through its own classes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from maxk.core.errors import DataError
from maxk.data.catalog import Entry, needs
from maxk.data.dataset import MASKS
from maxk.data.remote import contents, explain, timeout, verify
from maxk.data.source import Source
from maxk.graph.files import Edges

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

#: Features of a smaller filled share are kept as CSR, as bags of words are in our own files: the
#: 8,415 columns of coauthor-physics take 1.2 GB densely and 14 MB so.
SPARSE_SHARE = 0.05


def read_pyg(entry: Entry, root: Path) -> Source:
    """Load a data set by its class of ``torch_geometric.datasets``, which fetches it if need be.

    The files are in ``root/CLASS``, as in PyG's own examples, so earlier downloads are found.

    Args:
        entry: Its row in the catalog.
        root: The data folder.

    Raises:
        DataError: PyG is not installed; the files cannot be fetched; a file is damaged; or the
            processed file holds a pickle that may run code, which PyG would open after a warning.
    """
    try:
        from torch_geometric import datasets
    except ImportError as error:
        raise needs(entry) from error
    before = contents(entry, root)
    processed = (root / entry.folder).with_name("processed")
    kept = any(processed.glob("*data*.pt")) or (bool(entry.parts) and any(processed.glob("*.pt")))
    loader = getattr(datasets, entry.loader)
    calls = [{"split": part} for part in entry.parts] or [{}]
    try:
        with timeout(), torch.device("cpu"), warnings.catch_warnings():
            warnings.filterwarnings("error", message="Weights only load failed")
            if entry.archive is not None and entry.missing(root):
                _fetch(entry, root)
            loaded = [loader(str(root / entry.loader), **entry.arguments, **call) for call in calls]
            graphs = [[held[i] for i in range(len(held))] for held in loaded]
    except DataError:
        raise
    except Exception as error:
        # A processed file is read only where the files it is made from are not needed.
        read = processed if kept and not entry.missing(root) else None
        raise explain(entry, root, error, processed=read, before=before) from error
    if entry.parts:
        return _joined(entry, graphs)
    (data,) = graphs[0]
    source = Source(entry.name, entry.name, _edges(data.edge_index, data.num_nodes))
    source.x = thin(data.x) if data.x is not None else None
    source.y = data.y.numpy()
    source.masks = {mask: data[mask].numpy() for mask in MASKS if mask in data}
    return source


def _fetch(entry: Entry, root: Path) -> None:
    """Put the archive where the class unpacks it, so that it can be checked before."""
    from torch_geometric.data import download_url

    path = root / str(entry.archive)
    fetched = not path.is_file()
    download_url(entry.page, str(path.parent))
    verify(entry, root, fetched=fetched)


def thin(x: Tensor) -> NDArray[Any] | Tensor:
    """Features as they are kept: a dense array, or CSR where few are not 0."""
    if int(x.count_nonzero()) > SPARSE_SHARE * x.numel():
        return x.numpy()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        return x.float().to_sparse_csr()


def _joined(entry: Entry, graphs: list[list[Any]]) -> Source:
    """One graph of many without an edge between them; each part's nodes are one mask."""
    flat = [data for part in graphs for data in part]
    starts = np.cumsum([0, *(data.num_nodes for data in flat)]).tolist()
    edges = [data.edge_index + start for data, start in zip(flat, starts, strict=False)]
    total = starts[-1]
    source = Source(entry.name, entry.name, _edges(torch.cat(edges, dim=1), total))
    source.x = torch.cat([data.x for data in flat]).numpy()
    source.y = torch.cat([data.y for data in flat]).numpy()
    part_of = np.repeat(np.arange(len(graphs)), [sum(d.num_nodes for d in part) for part in graphs])
    source.masks = {mask: part_of == index for index, mask in enumerate(MASKS)}
    return source


def _edges(edge_index: Tensor, nodes: int) -> Edges:
    if edge_index is None:
        raise DataError("the loaded graph has no edge_index")
    return Edges(edge_index, num_src=nodes, num_dst=nodes)
