"""From a name or a path to a checked :class:`~maxk.data.dataset.Dataset`."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from maxk.core.errors import DataError
from maxk.core.settings import settings
from maxk.data import digits as digits_source
from maxk.data.catalog import BUILT_IN, Entry, find, nearest
from maxk.data.dataset import METRICS, Dataset, Metric
from maxk.data.features import (
    Scaling,
    check_features,
    check_scaling,
    identity_features,
    scale_features,
)
from maxk.data.labels import Labels, check_labels
from maxk.data.source import Source, read_source, replace_parts
from maxk.data.splits import Split, choose_split, make_split
from maxk.data.synthetic import generate, node_features, parse_spec
from maxk.graph.files import (
    GRAPH_SUFFIXES,
    HASHED,
    TEXT_SUFFIXES,
    Edges,
    check_reach,
    in_memory,
    line_of,
    text_kind,
)
from maxk.graph.graph import Graph

#: An id beyond it is no count of nodes: 32-bit hashes begin there.
HUGE_ID = 2**31


def load(
    name_or_path: str | Path,
    *,
    undirected: bool = False,
    self_loops: bool = False,
    split: int | None = None,
    seed: int = 0,
    scaling: Scaling = "none",
    features: str | Path | None = None,
    labels: str | Path | None = None,
) -> Dataset:
    """Load a data set and check it once: counts, ids, features, labels, masks.

    Args:
        name_or_path: ``"digits"`` (:func:`maxk.data.digits.digits`); ``"synthetic"``, with options
            as in ``"synthetic:nodes=5000,degree=30"`` (:func:`maxk.data.synthetic.parse_spec`); a
            path to a ``.npz``, an edge list (``.txt``, ``.csv``, ``.tsv``, also ``.gz``) or a
            MatrixMarket file (``.mtx``), see :func:`maxk.data.source.read_source`; ``"NAME"`` for
            ``NAME.npz`` in the data folder (``MAXK_DATA_DIR``, otherwise ``./data``); or a name of
            the catalog, as ``"reddit"`` or ``"ogbn-arxiv"``
            (:func:`maxk.data.catalog.catalog`), which PyG or OGB fetches into the data folder.
        undirected: Add the missing opposite directions; repeated edges become one, whose weight is
            their mean. Otherwise edges stay as stored.
        self_loops: Add the missing self-loops, with weight 1.
        split: Which of several splits of the source; an error where there are several and none is
            named.
        seed: Of the split, where the source has none. A synthetic graph has its own seed, so that
            several seeds of one run see one graph.
        scaling: ``"none"``, ``"row"`` or ``"standard"``, see
            :func:`maxk.data.features.scale_features`.
        features: File to read features from, for formats that hold none.
        labels: File to read labels from.

    Returns:
        The data set. What was decided on the way is in its ``notes``.

    Raises:
        DataError: one sentence that names the file, the line of a text file, what it holds and
            what it should.
        ValueError: ``scaling`` is unknown.

    Example:
        >>> from maxk.data.load import load
        >>> data = load("digits", seed=1)
        >>> data.notes
        ('no split given: made a stratified one with seed 1: 100 train, 300 val, 1397 test nodes',)
    """
    check_scaling(scaling)
    source = open_source(name_or_path, features, labels)
    return assemble(
        source,
        undirected=undirected,
        self_loops=self_loops,
        split=split,
        seed=seed,
        scaling=scaling,
    )


def assemble(
    source: Source,
    *,
    undirected: bool = False,
    self_loops: bool = False,
    split: int | None = None,
    seed: int = 0,
    scaling: Scaling = "none",
) -> Dataset:
    """Check a source and make the data set of it; arguments and errors as in :func:`load`."""
    with in_memory(f"{source.origin}: what is made of it"):
        nodes = check_counts(source)
        if source.y is None:
            raise DataError(
                f"{source.origin}: holds no labels; give y in the .npz, a file "
                f"{_labels_name(source)} next to it, or labels="
            )
        notes = list(source.notes)
        checked = check_labels(source.y, source.num_classes, _what(source, "y"))
        notes += checked.notes
        if source.x is None:
            x = identity_features(nodes)
            notes.append("no features: each node gets a column of its own (one-hot)")
        else:
            x = check_features(source.x, _what(source, "x"))
        masks = split_of(source, checked, split, seed)
        notes += masks.notes
        metric = _metric(source, checked, notes)
        graph = build_graph(source, nodes, undirected=undirected, self_loops=self_loops)
        if source.stored_once and not undirected:
            notes.append(
                "the source stores each undirected edge once; messages flow one way only "
                "unless undirected=True (--undirected)"
            )
        return Dataset(
            name=source.name,
            graph=graph,
            x=scale_features(x, scaling),
            y=checked.y,
            train_mask=masks.train,
            val_mask=masks.val,
            test_mask=masks.test,
            num_classes=checked.num_classes,
            metric=metric,
            notes=tuple(notes),
            evaluator=source.evaluator,
        )


def open_source(
    name_or_path: str | Path,
    features: str | Path | None = None,
    labels: str | Path | None = None,
) -> Source:
    """Find and read what a name or path means; nothing is compared yet.

    Raises:
        DataError: nothing has that name, or a file cannot be read.
    """
    text = str(name_or_path)
    name = text.partition(":")[0]
    if name in BUILT_IN and not isinstance(name_or_path, Path):
        if features is not None or labels is not None:
            raise DataError(
                f"{name} brings its own features and labels: give a file's path instead"
            )
        if name == "synthetic":
            return _synthetic(text)
        if text == name:
            return digits_source.digits()
        raise DataError(f"digits takes no options, got {text!r}")
    path = Path(text)
    if not path.is_file() and text_kind(path) not in GRAPH_SUFFIXES:
        stored = settings().data_dir / f"{text}.npz"
        entry = None if isinstance(name_or_path, Path) else find(text)
        if stored.is_file():
            path = stored
        elif entry is not None:
            source = _from_catalog(entry)
            replace_parts(source, features, labels)
            return source
        elif not path.exists():
            raise DataError(_unknown(text, stored))
    with in_memory(f"{path}: what it holds"):
        return read_source(path, features, labels)


def _from_catalog(entry: Entry) -> Source:
    """Load a data set through the library that provides it, and note what differs from it."""
    from maxk.data.ogb import read_ogb
    from maxk.data.pyg import read_pyg

    read = read_ogb if entry.source == "ogb" else read_pyg
    source = read(entry, settings().data_dir)
    source.metric = entry.metric
    nodes, edges = source.edges.num_src, source.edges.edge_index.shape[1]
    for what, known, got in (("nodes", entry.nodes, nodes), ("edges", entry.edges, edges)):
        if known is not None and known != got:
            source.notes.append(
                f"warning: the published {entry.name} has {known:,} {what}, this one {got:,}: "
                f"are the files in {settings().data_dir / entry.folder} the right ones?"
            )
    if entry.remark:
        source.notes.append(entry.remark)
    return source


def _unknown(text: str, stored: Path) -> str:
    near = nearest(text)
    return (
        f"no data set is called {text!r} and no such file exists"
        + (f"; did you mean {near}?" if near else "")
        + f"; the names are {', '.join(BUILT_IN)} and those of 'maxk data list', "
        f"files end in {', '.join(GRAPH_SUFFIXES)}, and {stored} is not there"
    )


def check_counts(source: Source) -> int:
    """Compare every count of nodes, and the ids of the edges with it; return the count, N.

    Raises:
        DataError: names each part with its count, or the first id outside with its place.
    """
    edges = source.edges
    if edges.num_src != edges.num_dst:
        raise DataError(
            f"{source.origin}: the graph of a data set must be square, "
            f"got {edges.num_dst} rows and {edges.num_src} columns"
        )
    counts = {}
    if source.x is not None and len(source.x.shape) > 0:
        counts[f"{source.called('x')} has"] = source.x.shape[0]
    if source.y is not None and source.y.ndim > 0:
        counts[f"{source.called('y')} has"] = source.y.shape[0]
    if edges.num_src is not None:
        counts["the graph has"] = edges.num_src
    index = edges.edge_index
    low, high = (0, -1) if index.numel() == 0 else map(int, torch.aminmax(index))
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{what} {count} rows" for what, count in counts.items())
        hints = [
            f"; the first row of {source.called(part)} may be a header that numbers the columns: "
            "delete it if so"
            for part in source.counted
        ]
        raise DataError(
            f"{source.origin}: the node counts disagree: {listed}, edges reach id {high}"
            + "".join(hints)
        )
    nodes = next(iter(counts.values()), high + 1)
    if not counts and low >= 0:
        check_reach(edges, nodes, source.origin)
    if low < 0 or high >= nodes:
        raise DataError(_bad_id(source, nodes, low, high))
    if _may_have_header(source, nodes, high):
        names = " and ".join(source.called(part) for part in source.counted)
        source.notes.append(
            f"warning: {names}: the first row counts the columns (0, 1, ...) and is read as node "
            "0; if it is a header, as pandas writes it, delete it"
        )
    return nodes


def _may_have_header(source: Source, nodes: int, high: int) -> bool:
    """Whether the first rows of text files are more likely column numbers than node 0.

    A first label of 0 and first features 0, 1 are common, so few columns are suspected only where
    all files begin so and the last node has no edge.
    """
    if "x" in source.counted and source.x is not None and source.x.shape[1] > 2:
        return True
    texts = {p for p, path in source.where.items() if text_kind(Path(path)) in TEXT_SUFFIXES}
    return bool(texts) and texts == set(source.counted) and nodes == high + 2


def build_graph(
    source: Source, nodes: int, *, undirected: bool = False, self_loops: bool = False
) -> Graph:
    """Make the graph of a source whose ids are checked to lie in 0..nodes - 1."""
    try:
        edges = symmetrise(source.edges, nodes) if undirected else source.edges
        graph = Graph.from_edge_index(edges.edge_index, nodes, edges.weight)
    except (MemoryError, RuntimeError) as error:
        raise DataError(
            f"{source.origin}: a graph of {nodes} nodes and {source.edges.edge_index.shape[1]} "
            "edges does not fit in memory"
        ) from error
    return graph.with_self_loops() if self_loops else graph


def symmetrise(edges: Edges, nodes: int) -> Edges:
    """Both directions of every edge, each once, sorted by target and source.

    Weights of edges that fall together are averaged, so that a graph stored both ways keeps its
    weights. Self-loops stay, once each.

    Raises:
        MemoryError: a pair of ids does not fit 64 bits.
    """
    if nodes**2 >= 2**63:
        raise MemoryError(f"{nodes} nodes")
    source, target = edges.edge_index.long()
    keys = torch.cat([target * nodes + source, source * nodes + target])
    weight = None
    if edges.weight is None:
        keys.numpy().sort()
        keys = torch.unique_consecutive(keys)
    else:
        keys, group, counts = torch.unique(keys, return_inverse=True, return_counts=True)
        total = torch.zeros(keys.numel(), dtype=torch.float64, device="cpu")
        total.index_add_(0, group, edges.weight.double().repeat(2))
        weight = (total / counts).float()
    rows = torch.div(keys, max(nodes, 1), rounding_mode="floor")
    return Edges(torch.stack([keys - rows * nodes, rows]), weight, nodes, nodes)


def _synthetic(spec: str) -> Source:
    config = parse_spec(spec)
    drawn = generate(config)
    edges = Edges(drawn.edge_index, num_src=drawn.num_nodes, num_dst=drawn.num_nodes)
    return Source(
        "synthetic",
        spec,
        edges,
        node_features(config, drawn.communities).numpy(),
        drawn.communities.numpy(),
        num_classes=config.communities,
    )


def split_of(source: Source, labels: Labels, split: int | None, seed: int) -> Split:
    """Choose one of the source's splits, or make one from the seed where it has none.

    Raises:
        DataError: no such split exists, or its masks are wrong.
    """
    if source.masks:
        return choose_split(source, labels, split)
    if split:
        raise DataError(
            f"{source.origin}: holds no splits, so split={split} names none; "
            "leave it out: a split is made from the seed"
        )
    if source.origin == "digits":
        return make_split(labels, seed, "digits", digits_source.TRAIN, digits_source.VAL)
    return make_split(labels, seed, source.origin)


def _metric(source: Source, labels: Labels, notes: list[str]) -> Metric:
    """The metric that the source names if it fits the labels, else the usual one."""
    multi_label = labels.y.dim() == 2
    usual: Metric = "micro_f1" if multi_label else "accuracy"
    named = source.metric
    if named is None:
        return usual
    for metric in METRICS:
        fits = (
            (metric == "accuracy" and not multi_label)
            or metric == "micro_f1"
            or (metric == "roc_auc" and (multi_label or labels.num_classes == 2))
        )
        if metric == named and fits:
            return metric
    kind = "multi-label" if multi_label else "single-label"
    notes.append(
        f"metric {named!r} of the source does not fit {labels.num_classes} {kind} classes "
        f"here: using {usual}"
    )
    return usual


def _what(source: Source, part: str) -> str:
    """A part of a source with its file, once."""
    return source.where.get(part) or f"{source.origin}: {source.called(part)}"


def _labels_name(source: Source) -> str:
    return f"{source.name}.labels.npy"


def _bad_id(source: Source, nodes: int, low: int, high: int) -> str:
    index: Tensor = source.edges.edge_index
    edge = int(((index < 0) | (index >= nodes)).any(dim=0).nonzero()[0])
    ends = [int(end) for end in index[:, edge]]
    side = 0 if not 0 <= ends[0] < nodes else 1
    end = ("source", "target")[side]
    if source.text is not None:
        place = f"{source.text}:{line_of(source.text, edge)}: {end} id {ends[side]}"
    else:
        place = (
            f"{source.origin}: edge_index holds the {end} id {ends[side]} at position {edge}, which"
        )
    allowed = f"0..{nodes - 1}" if nodes else "none"
    message = f"{place} lies outside {allowed} (the data set has {nodes} nodes)"
    if low == 1 and high == nodes:
        return f"{message}; the ids run from 1 to {nodes}, so they look 1-based: subtract 1"
    if max(high, -low) > HUGE_ID:
        return f"{message}; {HASHED}"
    return message
