"""What a data set looks like and what training on it would need."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maxk.core.checks import check_k
from maxk.data.dataset import Dataset
from maxk.data.load import assemble, build_graph, check_counts, open_source
from maxk.nn.nonlinearities import REGULAR

if TYPE_CHECKING:
    from maxk.graph.graph import Graph

DEFAULT_HIDDEN, DEFAULT_LAYERS, DEFAULT_K = 256, 3, 32


@dataclass(frozen=True)
class Description:
    """Facts about a data set or a bare graph.

    Attributes:
        name: Its name.
        nodes: N.
        edges: E, directed, as loaded.
        features: F, or None for a bare graph.
        feature_density: Share of features that are not 0.
        classes: C, or None.
        multi_label: Whether a node may carry several labels, or None.
        metric: The metric, or None.
        train: Nodes in the training mask, or None; ``val`` and ``test`` likewise.
        val: Nodes in the validation mask.
        test: Nodes in the test mask.
        unlabelled: Nodes without a label, or None.
        weighted: Whether edges have weights.
        degree_mean: Mean in-degree, E / N.
        degree_median: Median in-degree.
        degree_p99: in-degree that 99 % of the nodes do not pass.
        degree_max: Largest in-degree.
        out_degree_max: Largest out-degree.
        self_loops: Edges from a node to itself.
        duplicates: Edges beyond the first between the same source and target.
        isolated: Nodes without an edge to or from another node.
        reciprocity: Share of distinct edges between different nodes whose opposite is there too;
            1 for a symmetric graph, None without edges.
        homophily: Share of edges between different labelled nodes that join equal labels; None for
            multi-label or bare graphs.
        hidden: Width D of the memory estimate.
        layers: Layers L of the memory estimate.
        k: Kept entries of the memory estimate.
        memory_relu: Bytes that training the ReLU model would need, see :func:`estimate_memory`.
        memory_maxk: The same with MaxK.
        notes: The loader's notes.
    """

    name: str
    nodes: int
    edges: int
    features: int | None
    feature_density: float | None
    classes: int | None
    multi_label: bool | None
    metric: str | None
    train: int | None
    val: int | None
    test: int | None
    unlabelled: int | None
    weighted: bool
    degree_mean: float
    degree_median: int
    degree_p99: int
    degree_max: int
    out_degree_max: int
    self_loops: int
    duplicates: int
    isolated: int
    reciprocity: float | None
    homophily: float | None
    hidden: int
    layers: int
    k: int
    memory_relu: int
    memory_maxk: int
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        return {**asdict(self), "notes": list(self.notes)}

    def to_text(self) -> str:
        """Plain lines for a terminal."""
        rows = [("data set", self.name), ("nodes", f"{self.nodes:,}")]
        rows.append(("edges", f"{self.edges:,} directed{', weighted' if self.weighted else ''}"))
        rows.append(
            (
                "in-degree",
                f"mean {self.degree_mean:.2f}, median {self.degree_median:,}, "
                f"p99 {self.degree_p99:,}, max {self.degree_max:,}",
            )
        )
        rows.append(("out-degree", f"max {self.out_degree_max:,}"))
        rows.append(("self-loops", f"{self.self_loops:,}"))
        rows.append(("duplicates", f"{self.duplicates:,}"))
        rows.append(("isolated", f"{self.isolated:,}"))
        if self.reciprocity is not None:
            kind = "symmetric" if self.reciprocity == 1 else "directed"
            rows.append(("reciprocity", f"{self.reciprocity:.3f} ({kind})"))
        if self.features is not None:
            rows.append(("features", f"{self.features:,} ({self.feature_density:.1%} not 0)"))
        if self.classes is not None:
            kind = "multi-label" if self.multi_label else "single-label"
            rows.append(("classes", f"{self.classes} ({kind}), scored by {self.metric}"))
            rows.append(
                (
                    "split",
                    f"{self.train:,} train, {self.val:,} val, {self.test:,} test, "
                    f"{self.unlabelled:,} unlabelled",
                )
            )
        if self.homophily is not None:
            rows.append(("homophily", f"{self.homophily:.3f} of the edges join equal labels"))
        rows.append(
            (
                "memory",
                f"about {_size(self.memory_relu)} with ReLU, {_size(self.memory_maxk)} with MaxK "
                f"(hidden {self.hidden}, layers {self.layers}, k {self.k}, float32)",
            )
        )
        rows += [("note", note) for note in self.notes]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def describe(
    source: Dataset | Graph | str | Path,
    *,
    hidden: int = DEFAULT_HIDDEN,
    layers: int = DEFAULT_LAYERS,
    k: int = DEFAULT_K,
    **options: Any,
) -> Description:
    """Describes a data set, a graph, or what a name or path means.

    Args:
        source: A loaded data set, a graph, or what :func:`maxk.data.load.load` takes. A file
            without labels is described as a bare graph; of several splits the first is counted.
        hidden: D of the memory estimate.
        layers: L of the memory estimate.
        k: Kept entries of the memory estimate.
        **options: For :func:`maxk.data.load.load`, where ``source`` is a name or path.

    Raises:
        DataError: as in :func:`maxk.data.load.load`.
        ValueError: ``hidden``, ``layers`` or ``k`` is out of range.

    Example:
        >>> from maxk.data.describe import describe
        >>> facts = describe("digits")
        >>> facts.nodes, facts.self_loops, facts.reciprocity
        (1797, 0, 1.0)
    """
    if hidden < 1 or layers < 1:
        raise ValueError(f"hidden and layers must be >= 1, got {hidden} and {layers}")
    check_k(k, hidden)
    name = "graph"
    data = source
    notes: tuple[str, ...] = ()
    if isinstance(data, (str, Path)):
        name, data, notes = _open(data, **options)
    graph = data.graph if isinstance(data, Dataset) else data
    dataset = data if isinstance(data, Dataset) else None
    structure = _structure(graph, dataset)
    memory = {
        nonlinearity: estimate_memory(data, ModelShape("sage", nonlinearity, hidden, layers, k))
        for nonlinearity in ("relu", "maxk")
    }
    task: dict[str, Any] = dict.fromkeys(
        (
            "features",
            "feature_density",
            "classes",
            "multi_label",
            "metric",
            "train",
            "val",
            "test",
            "unlabelled",
        )
    )
    if dataset is not None:
        name = dataset.name
        x = dataset.x
        stored = x.values() if x.layout == torch.sparse_csr else x
        task = {
            "features": dataset.num_features,
            "feature_density": int(stored.count_nonzero()) / max(x.shape[0] * x.shape[1], 1),
            "classes": dataset.num_classes,
            "multi_label": dataset.multi_label,
            "metric": dataset.metric,
            "train": int(dataset.train_mask.sum()),
            "val": int(dataset.val_mask.sum()),
            "test": int(dataset.test_mask.sum()),
            "unlabelled": int((~dataset.labelled).sum()),
        }
    return Description(
        name=name,
        nodes=graph.num_dst,
        edges=graph.num_edges,
        weighted=graph.weight is not None,
        **task,
        **structure,
        hidden=hidden,
        layers=layers,
        k=k,
        memory_relu=memory["relu"],
        memory_maxk=memory["maxk"],
        notes=notes if dataset is None else dataset.notes,
    )


@dataclass(frozen=True)
class ModelShape:
    """What of a model decides the memory of its training.

    Attributes:
        model: ``sage``, ``gcn`` or ``gin``.
        nonlinearity: ``maxk``, ``relu`` or another; those that return dense rows count as ``relu``.
        hidden: D.
        layers: L.
        k: Kept entries per row; without meaning for ``relu``.
        dropout: probability; above 0 a mask is kept.
        norm: ``layer``, ``batch`` or ``none``.
    """

    model: str = "sage"
    nonlinearity: str = "maxk"
    hidden: int = DEFAULT_HIDDEN
    layers: int = DEFAULT_LAYERS
    k: int = DEFAULT_K
    dropout: float = 0.5
    norm: str = "layer"


# Dense N x D matrices that each layer keeps for backward, without what its norm and dropout keep,
# and those that a step works on. Counted on the CPU for 1 to 4 layers of each model.
_KEPT_RELU = 2
_KEPT_MAXK = 1
_AT_WORK = 2


def estimate_memory(
    data: Dataset | Graph, model: ModelShape | None = None, *, device: str = "cpu"
) -> int:
    r"""Bytes that full-batch float32 training with Adam holds at its peak.

    .. math:: G + X + 16 P + L\,S + 4 N D\,W + 8 N C

    - :math:`G = 2 (8 (N + 1) + 4 E) + 8 E` the graph, its transpose and the way between them, and
      4 E for weights; on a GPU ReLU's products need 8 E for values;
    - :math:`X` the features as they are stored;
    - :math:`P` parameters, each with gradient and two moments: :math:`F D + D C`, in each layer
      4 D and :math:`2 D^2` for GraphSAGE, :math:`D^2` for GCN and GIN;
    - :math:`S` what a layer keeps for its backward pass. ReLU: :math:`4 N D` for the activation,
      the aggregate and what the norm reads, and with dropout for the dropped activation (GCN needs
      none) and :math:`m N D` for its mask. MaxK: :math:`4 N D` for the aggregate and what the norm
      reads, and :math:`N k (v + c + m)` for values, column numbers and mask. v is 4 where a node's
      own term reads the values (not in GCN), c the bytes of a column number, m those of an entry of
      dropout's mask: 4 on a CPU, 1 on a GPU;
    - W = 2 dense matrices that a step works on, 3 without a norm (MaxK: in GraphSAGE only); logits
      and their gradient.

    The tensors of a step, counted on graphs of 7,650 and 11,758 nodes with D = 256, are within 3 %
    of it; for ReLU without a norm it is up to a fifth too much. The framework itself, and
    libraries' workspaces, come on top.

    Args:
        data: A data set, or a bare graph (then F = D and C = 1).
        model: What is trained; by default three layers of GraphSAGE with MaxK.
        device: ``cpu`` or ``cuda``.
    """
    model = model or ModelShape()
    graph = data.graph if isinstance(data, Dataset) else data
    nodes, edges, hidden = graph.num_dst, graph.num_edges, model.hidden
    relu, cuda = model.nonlinearity not in REGULAR, device == "cuda"
    total = 16 * (nodes + 1) + 16 * edges + (0 if graph.weight is None else 4 * edges)
    if relu and cuda:
        total += 8 * edges
    features, classes = hidden, 1
    if isinstance(data, Dataset):
        features, classes = data.num_features, data.num_classes
        total += _bytes(data.x)
    else:
        total += 4 * nodes * features
    weights = 2 if model.model == "sage" else 1
    parameters = (features + classes) * hidden + model.layers * hidden * (weights * hidden + 4)
    normed = model.norm != "none"
    dense = 4 * nodes * hidden
    mask = 0 if model.dropout == 0 else 1 if cuda else 4
    if relu:
        dropped = mask > 0 and model.model != "gcn"
        kept = (_KEPT_RELU + normed + dropped) * dense + nodes * hidden * mask
    else:
        column = 1 if hidden <= 256 else 2 if hidden <= 32768 else 4
        value = 0 if model.model == "gcn" else 4
        kept = (_KEPT_MAXK + normed) * dense + nodes * model.k * (value + column + mask)
    work = (_AT_WORK + (not normed and (relu or model.model == "sage"))) * dense
    return total + 16 * parameters + model.layers * kept + work + 8 * nodes * classes


def look_up(
    name_or_path: str | Path,
    *,
    features: str | Path | None = None,
    labels: str | Path | None = None,
    **options: Any,
) -> tuple[str, Dataset | Graph]:
    """Load what a name or path means, to look at it: name, and data set or bare graph.

    Like :func:`maxk.data.load.load`, but a file without labels is a bare graph, and of several
    splits the first is taken where none is chosen.
    """
    name, data, _ = _open(name_or_path, features, labels, **options)
    return name, data


def _open(
    name_or_path: str | Path,
    features: str | Path | None = None,
    labels: str | Path | None = None,
    **options: Any,
) -> tuple[str, Dataset | Graph, tuple[str, ...]]:
    """What :func:`look_up` returns, and the notes of the source."""
    source = open_source(name_or_path, features, labels)
    if source.y is None:
        wanted = {name: bool(options.get(name)) for name in ("undirected", "self_loops")}
        graph = build_graph(source, check_counts(source), **wanted)
        return source.name, graph, tuple(source.notes)
    several = any(mask.ndim == 2 and mask.shape[1] > 1 for mask in source.masks.values())
    if several and options.get("split") is None:
        options["split"] = 0
    dataset = assemble(source, **options)
    return source.name, dataset, dataset.notes


def _structure(graph: Graph, dataset: Dataset | None) -> dict[str, Any]:
    source, target = graph.edge_index()
    nodes = graph.num_dst
    degrees = graph.in_degrees()
    ordered = degrees.sort()[0]
    loop = source == target
    others, sinks = source[~loop], target[~loop]
    touched = torch.zeros(max(nodes, graph.num_src), dtype=torch.bool, device=graph.device)
    touched[others] = True
    touched[sinks] = True
    keys = _distinct(sinks * graph.num_src + others)
    distinct_loops = int(source[loop].unique().numel())
    reciprocity = homophily = None
    if keys.numel() and graph.num_src == nodes:
        opposite = keys % nodes * nodes + torch.div(keys, nodes, rounding_mode="floor")
        place = torch.searchsorted(keys, opposite).clamp_(max=keys.numel() - 1)
        reciprocity = int((keys[place] == opposite).sum()) / keys.numel()
    if dataset is not None and not dataset.multi_label:
        ends = dataset.y[torch.stack([others, sinks])]
        both = (ends >= 0).all(dim=0)
        if bool(both.any()):
            homophily = int((ends[0] == ends[1])[both].sum()) / int(both.sum())
    return {
        "degree_mean": graph.num_edges / max(nodes, 1),
        "degree_median": _quantile(ordered, 0.5),
        "degree_p99": _quantile(ordered, 0.99),
        "degree_max": _quantile(ordered, 1.0),
        "out_degree_max": int(graph.out_degrees().max()) if graph.num_src else 0,
        "self_loops": int(loop.sum()),
        "duplicates": graph.num_edges - keys.numel() - distinct_loops,
        "isolated": int((~touched).sum()),
        "reciprocity": reciprocity,
        "homophily": homophily,
    }


def _distinct(keys: Tensor) -> Tensor:
    distinct: Tensor = torch.unique_consecutive(keys.sort()[0])
    return distinct


def _quantile(ordered: Tensor, share: float) -> int:
    """The smallest value that at least ``share`` of the sorted values do not pass; 0 for none."""
    if not ordered.numel():
        return 0
    return int(ordered[max(0, -int(-share * ordered.numel() // 1) - 1)])


def _bytes(x: Tensor) -> int:
    if x.layout == torch.sparse_csr:
        return sum(_bytes(part) for part in (x.crow_indices(), x.col_indices(), x.values()))
    return x.numel() * x.element_size()


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
