"""Node-property data sets of the Open Graph Benchmark, through its own package."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
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

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OGBEvaluator:
    """OGB's ``Evaluator`` of one data set as a score of logits.

    Attributes:
        name: Of the data set, as OGB calls it.
    """

    name: str

    def __call__(self, logits: Tensor, y: Tensor) -> float:
        """Score the nodes whose rows are given.

        Args:
            logits: [n, C].
            y: Class numbers int64 [n], or 0 and 1 as float32 [n, C].

        Raises:
            DataError: OGB refuses the labels, for example because no task has both kinds.
        """
        evaluator = _evaluator(self.name)
        predicted = logits if y.dim() == 2 else logits.argmax(dim=1, keepdim=True)
        pair = {"y_true": y if y.dim() == 2 else y[:, None], "y_pred": predicted}
        try:
            return float(evaluator.eval(pair)[evaluator.eval_metric])
        except RuntimeError as error:
            raise DataError(f"OGB cannot score {self.name}: {error}") from error


def read_ogb(entry: Entry, root: Path) -> Source:
    """Load a data set by OGB's ``PygNodePropPredDataset``: its graph, its split, its evaluator.

    OGB has another loader that needs no PyG, but what that one keeps of a load is a pickle that
    torch cannot open safely, so every load would read the tables again.

    Nothing is asked on the terminal: naming the data set answers OGB's question before a large
    download, and the one about an outdated folder is an error here.

    Args:
        entry: Its row in the catalog.
        root: The data folder; the files are in ``root/ogbn_NAME``, as OGB puts them.

    Raises:
        DataError: OGB is not installed; the archive cannot be fetched; the folder is of another
            release; a file is damaged; or what OGB kept of an earlier load may run code.
    """
    library = _library(entry)
    folder = (root / entry.folder).parent
    before = contents(entry, root)
    kept = folder / "processed" / "geometric_data_processed.pt"
    had = kept.is_file()
    try:
        # OGB's progress goes where it does not mix with what a command prints.
        with (
            timeout(),
            contextlib.redirect_stdout(sys.stderr),
            warnings.catch_warnings(),
            _plain_pickles(),
        ):
            # OGB hands pandas' arrays on without writing to them.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            if entry.missing(root):
                _fetch(entry, root)
            _check_release(entry, library, folder)
            loaded = library.PygNodePropPredDataset(name=entry.name, root=str(root))
            split = loaded.get_idx_split()
            data = loaded[0]
    except DataError:
        raise
    except Exception as error:
        read = kept if had else None
        raise explain(entry, root, error, processed=read, before=before) from error
    nodes = int(data.num_nodes)
    source = Source(entry.name, entry.name, Edges(data.edge_index, None, nodes, nodes))
    source.y = data.y.numpy()
    if data.x is not None:
        source.x = data.x.numpy()
    elif data.edge_attr is not None:
        source.x = mean_of_edges(data.edge_index[1].numpy(), data.edge_attr.numpy(), nodes)
    source.masks = {
        mask: _mask(split[part], nodes, f"{entry.name}: the {part} split")
        for mask, part in zip(MASKS, ("train", "valid", "test"), strict=True)
    }
    source.evaluator = OGBEvaluator(entry.name)
    return source


def mean_of_edges(
    target: NDArray[np.int64], features: NDArray[Any], nodes: int
) -> NDArray[np.float32]:
    r"""Node features as the mean over incoming edges, :math:`x_t = \frac{1}{d_t} \sum_e f_e`.

    Args:
        target: int64 [E], the node that each edge points to.
        features: [E, F].
        nodes: N; a node without edges gets zeros.
    """
    degree = np.maximum(np.bincount(target, minlength=nodes), 1)
    columns = [np.bincount(target, weights=column, minlength=nodes) for column in features.T]
    return (np.stack(columns, axis=1) / degree[:, None]).astype(np.float32)


@cache
def _evaluator(name: str) -> Any:
    from ogb.nodeproppred import Evaluator

    return Evaluator(name=name)


def _library(entry: Entry) -> Any:
    """Import ``ogb.nodeproppred``, without the thread in which ogb asks the net for news."""
    try:
        if "ogb" not in sys.modules and "outdated" not in sys.modules:
            # None in sys.modules is Python's mark of a package that cannot be imported; ogb then
            # does without.
            sys.modules["outdated"] = None  # type: ignore[assignment]
            try:
                import ogb.nodeproppred
            finally:
                del sys.modules["outdated"]
        import ogb.nodeproppred
        import torch_geometric  # noqa: F401 (without it ogb imports, but lacks the loader)
    except ImportError as error:
        raise needs(entry) from error
    return ogb.nodeproppred


def _fetch(entry: Entry, root: Path) -> None:
    """Get the archive with OGB's own functions, or take the one that is there, and unpack it."""
    from ogb.utils.url import download_url, extract_zip

    archive = root / str(entry.archive)
    fetched = not archive.is_file()
    if fetched:
        size = "" if entry.download is None else f", about {entry.download / 1e6:,.0f} MB"
        log.info("fetching %s from %s%s", entry.name, entry.page, size)
    download_url(entry.page, str(root))
    verify(entry, root, fetched=fetched)
    # Unpacked aside, so that an interrupt leaves no half folder under the final name.
    aside = root / f".{entry.name}.unpacking"
    shutil.rmtree(aside, ignore_errors=True)
    extract_zip(str(archive), str(aside))
    inner = [path for path in aside.iterdir() if (path / "raw").is_dir()]
    if len(inner) != 1:
        raise DataError(
            f"{archive} holds no folder with raw/ in it, so it is not {entry.name}; "
            f"delete it and get it from {entry.page}"
        )
    folder = (root / entry.folder).parent
    shutil.rmtree(folder, ignore_errors=True)
    inner[0].rename(folder)
    shutil.rmtree(aside)
    archive.unlink()


def _check_release(entry: Entry, library: Any, folder: Path) -> None:
    """Refuse a folder of another release, about which OGB would ask on the terminal."""
    table = Path(library.__file__).with_name("master.csv").read_text(encoding="utf-8").splitlines()
    names = table[0].split(",")
    versions = next(line.split(",") for line in table if line.startswith("version,"))
    mark = folder / f"RELEASE_v{versions[names.index(entry.name)]}.txt"
    if not mark.is_file():
        raise DataError(
            f"{folder} lacks {mark.name}, so it is not OGB's present release; delete the folder "
            f"to fetch it again, or unpack {entry.page} there"
        )


@contextlib.contextmanager
def _plain_pickles() -> Iterator[None]:
    """Let torch.load open the graphs and arrays that OGB saves, and nothing that can run code."""
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    rebuild: Any = np._core.multiarray._reconstruct  # type: ignore[attr-defined]
    arrays = [(rebuild, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    kinds = {type(np.dtype(name)) for name in ("int64", "int32", "float32", "float64", "bool")}
    # Holders of tensors, which PyG saves but does not name as safe.
    holders = [DataEdgeAttr, DataTensorAttr, GlobalStorage]
    with torch.serialization.safe_globals([*arrays, np.ndarray, np.dtype, *kinds, *holders]):
        yield


def _mask(ids: Any, nodes: int, what: str) -> NDArray[np.bool_]:
    index = np.asarray(ids)
    if index.size and not 0 <= int(index.min()) <= int(index.max()) < nodes:
        raise DataError(f"{what} names nodes outside 0..{nodes - 1}")
    mask = np.zeros(nodes, dtype=np.bool_)
    mask[index] = True
    return mask
