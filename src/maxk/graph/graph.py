"""The graph that every layer takes: immutable, its transpose and schedules filled on demand."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maxk.graph.adjacency import Adjacency
from maxk.graph.csr import CSR, check_ids, check_index, from_arrays, from_edges
from maxk.graph.kept import make, same
from maxk.graph.weights import check_reduce, gcn_scale, gcn_weight, mean_scale, missing_loops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scipy.sparse import sparray, spmatrix


class Graph:
    """A directed graph, possibly weighted, possibly bipartite.

    Edge ``s -> t`` means ``y[t] += w * h[s]``. Rows of the CSR arrays are targets, its columns
    sources. Parallel edges are kept and each counts.

    Example:
        >>> import torch
        >>> from maxk.graph.graph import Graph
        >>> graph = Graph.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 2]]))
        >>> graph
        Graph(num_src=3, num_dst=3, num_edges=3, device=cpu)
        >>> graph.indptr
        tensor([0, 0, 1, 3])
    """

    __slots__ = (
        "_adjacencies", "_complete", "_csr", "_filled", "_looked_at", "_loops", "_order_kept",
        "_weight", "_weighted",
    )  # fmt: skip

    def __init__(
        self,
        csr: CSR,
        edge_weight: Tensor | None = None,
        *,
        order_kept: bool = True,
        loops: int = 0,
    ) -> None:
        # A derived graph holds the caller's own weight tensor, never one computed from it, so that
        # a change of the weights is seen and every backward pass has its own record.
        self._csr = csr
        self._weight = edge_weight
        self._order_kept = order_kept
        self._loops = loops  # self-loops of weight 1 behind the caller's edges
        self._filled: Graph | None = None
        self._complete = False  # known to lack no self-loop
        self._adjacencies: dict[tuple[str, torch.dtype], Adjacency] = {}
        # Scales of the symmetric normalisation with the weights that they were made of.
        self._weighted: dict[torch.dtype, tuple[Tensor, Adjacency]] = {}
        self._looked_at: int | None = None

    @staticmethod
    def from_edge_index(
        edge_index: Tensor,
        num_nodes: int | Sequence[int] | None = None,
        edge_weight: Tensor | None = None,
    ) -> Graph:
        """Builds a graph from a list of edges in any order.

        Args:
            edge_index: [2, E] integer, source ids in row 0 and target ids in row 1.
            num_nodes: N, or (num_src, num_dst) for a bipartite graph; by default one more than
                the largest id.
            edge_weight: [E] floating point, in the order of the edges; may require a gradient,
                which comes back in that order.

        Raises:
            TypeError: an array has the wrong dtype.
            ValueError: a shape is wrong, or an id lies outside the graph.
        """
        return _from_edge_index(edge_index, num_nodes, edge_weight, keep_order=False)

    @staticmethod
    def from_csr(
        indptr: Tensor,
        indices: Tensor,
        weight: Tensor | None = None,
        num_src: int | None = None,
    ) -> Graph:
        """Builds a graph from CSR arrays whose rows are targets.

        The arrays are copied, 8 bytes a row and 4 bytes an edge (8 from 2^31 nodes on), so that
        later changes of them do not reach the graph.

        Args:
            indptr: integer [M + 1].
            indices: integer [E], source of each edge.
            weight: [E] floating point in CSR order; its gradient comes back in that order.
            num_src: N; by default M, or one more than the largest id where that is larger.

        Raises:
            TypeError: an array has the wrong dtype.
            ValueError: the arrays disagree, or an id lies outside the graph.
        """
        csr = from_arrays(indptr, indices, num_src)
        return Graph(csr, _check_weight(weight, csr.num_edges, "weight", csr.device))

    @staticmethod
    def from_scipy(A: sparray | spmatrix) -> Graph:
        """Builds a graph from a SciPy sparse matrix ``A[target, source]``.

        Stored zeros are edges of weight 0; boolean and integer matrices of ones make an unweighted
        graph, others a weighted one in float32 (float64 stays).
        """
        if not hasattr(A, "tocsr"):
            raise TypeError(f"A must be a SciPy sparse matrix, got {type(A).__name__}")
        matrix: Any = A.tocsr()
        data = torch.from_numpy(matrix.data.astype("float64", copy=True))
        weight: Tensor | None = data
        if matrix.data.dtype.kind in "biu" and bool((data == 1).all()):
            weight = None
        elif matrix.data.dtype.name != "float64":
            weight = data.to(torch.float32)
        indptr, indices = (torch.from_numpy(ids) for ids in (matrix.indptr, matrix.indices))
        return Graph.from_csr(indptr, indices, weight, num_src=matrix.shape[1])

    @property
    def num_src(self) -> int:
        """Number of source nodes, N."""
        return self._csr.num_src

    @property
    def num_dst(self) -> int:
        """Number of target nodes, M."""
        return self._csr.num_dst

    @property
    def num_edges(self) -> int:
        """Number of edges, E."""
        return self._csr.num_edges

    @property
    def device(self) -> torch.device:
        """Where the arrays live."""
        return self._csr.device

    @property
    def indptr(self) -> Tensor:
        """int64 [M + 1], row boundaries; a copy, which may be changed."""
        return self._csr.indptr.clone()

    @property
    def indices(self) -> Tensor:
        """[E], source of each edge in CSR order; a copy, which may be changed."""
        return self._csr.indices.clone()

    @property
    def edge_weight(self) -> Tensor | None:
        """[E] in the caller's order, or None for an unweighted graph.

        Where :meth:`with_self_loops` added edges, they come last.

        Raises:
            ValueError: the tensor of weights has another length than when the graph was made.
        """
        weight = self._weight
        if weight is None:
            return None
        if weight.dim() != 1 or weight.shape[0] != self.num_edges - self._loops:
            # Its owner may have given it other memory, and kernels read one weight for each edge.
            _check_weight(weight, self.num_edges - self._loops, "edge_weight", self.device)
        return torch.cat([weight, weight.new_ones(self._loops)]) if self._loops else weight

    @property
    def weight(self) -> Tensor | None:
        """[E] in CSR order, differentiable with respect to :attr:`edge_weight`; or None."""
        weight = self.edge_weight
        if weight is None:
            return None
        if self._csr.order is not None:
            return weight[self._csr.order]
        if weight.is_inference() and not torch.is_inference_mode_enabled():
            # Autograd cannot save the caller's own tensor.
            return weight.clone()
        return weight

    @property
    def edge_order(self) -> Tensor | None:
        """int64 [E], place of each CSR entry in the caller's edge list; None where both agree.

        Also None for a graph made without weights by :meth:`from_edge_index`, which forgets the
        order of the list. A copy, which may be changed.
        """
        order = self._csr.order
        return None if order is None else order.clone()

    def edge_index(self) -> Tensor:
        """int64 [2, E], sources and targets in CSR order."""
        return torch.stack([self._csr.indices.long(), self._csr.rows().long()])

    def in_degrees(self) -> Tensor:
        """int64 [M], edges that end in each node."""
        return self._csr.indptr.diff()

    def out_degrees(self) -> Tensor:
        """int64 [N], edges that start in each node."""
        return torch.bincount(self._csr.indices, minlength=self.num_src)

    def to(self, device: torch.device | str) -> Graph:
        """The same graph on another device."""
        wanted = torch.device(device)
        if wanted.type == "cuda" and wanted.index is None:
            wanted = torch.device("cuda", torch.cuda.current_device())
        if wanted == self.device:
            return self
        weight = None if self._weight is None else self._weight.to(wanted)
        return Graph(self._csr.to(wanted), weight, order_kept=self._order_kept, loops=self._loops)

    def with_weight(self, weight: Tensor | None) -> Graph:
        """The same edges with other weights, [E] in the caller's order; shares all else.

        That is the order of :attr:`edge_weight`; :attr:`weight` is in CSR order and does not fit.

        Raises:
            TypeError: the weights are no floating-point tensor.
            ValueError: their shape or device is wrong, or the graph was made without weights from
                an edge list, whose order it did not keep.
        """
        if weight is not None and not self._order_kept:
            raise ValueError(
                "weight must follow the order of the edge list, which a graph made without weights "
                "does not keep; use Graph.from_edge_index(edge_index, edge_weight=...)"
            )
        weight = _check_weight(weight, self.num_edges, "weight", self.device)
        return Graph(self._csr, weight, order_kept=self._order_kept)

    def transpose(self) -> Graph:
        """The graph with every edge turned round; its weights keep the caller's order."""
        csr = self._csr.reversed()
        return Graph(csr, self._weight, order_kept=self._order_kept, loops=self._loops)

    def with_self_loops(self) -> Graph:
        """The graph with the missing self-loops added, each with weight 1; made once and kept.

        Raises:
            ValueError: the graph is bipartite.
        """
        if self.num_src != self.num_dst:
            raise ValueError(
                "self-loops need a square graph, got "
                f"{self.num_src} source and {self.num_dst} target nodes; use reduce='mean' or 'sum'"
            )
        if self._complete:
            return self
        if self._filled is None:
            if torch.compiler.is_compiling():
                raise RuntimeError(
                    "self-loops cannot be filled inside torch.compile; call "
                    "graph.prepare('gcn') once before the compiled function"
                )
            filled = self._fill()
            if filled is None:
                self._complete = True  # a graph that held itself would live until a collection
                return self
            self._filled = filled
        return self._filled

    def _fill(self) -> Graph | None:
        """The graph with the missing self-loops; None where none is missing."""
        weighted = self._weight is not None
        if weighted not in self._csr.filled:
            # Kept beside the rows, so that other weights on the same edges sort nothing again.
            self._csr.filled[weighted] = make(lambda: self._fill_rows(keep_order=weighted))
        csr = self._csr.filled[weighted]
        if csr is None:
            return None
        loops = csr.num_edges - self.num_edges
        return Graph(csr, self._weight, order_kept=weighted, loops=loops)

    def _fill_rows(self, *, keep_order: bool) -> CSR | None:
        """The rows with the missing self-loops; None where none is missing."""
        loops = missing_loops(self._csr)
        if loops.numel() == 0:
            return None
        edges = torch.cat([self.edge_index(), loops.expand(2, -1)], dim=1)
        csr = from_edges(edges, self.num_src, self.num_dst, keep_order=keep_order)
        if self._csr.order is not None and csr.order is not None:
            added = torch.arange(self.num_edges, csr.num_edges, device=self.device)
            csr.order = torch.cat([self._csr.order, added])[csr.order]
        return csr

    def adjacency(self, reduce: str, dtype: torch.dtype) -> Adjacency:
        """The matrix that a reduction multiplies with; kept until the weights it needs change.

        Args:
            reduce: "sum", "mean" or "gcn" (which expects a graph with filled self-loops).
            dtype: dtype of the scales: float32 or float64.

        Raises:
            ValueError: "gcn" meets a negative degree. On a GPU this is looked for on first use and
                when constant weights have changed in place, not on every call; where nobody looks,
                and under a compiler, such a node gets NaN.
        """
        key = (check_reduce(reduce), dtype)
        if reduce == "gcn" and self._weight is not None:
            return self._weighted_gcn(self._weight, dtype)
        kept = self._adjacencies.get(key)
        if kept is None:
            kept = self._adjacencies[key] = make(lambda: self._scaled(reduce, dtype))
        return kept

    def _scaled(self, reduce: str, dtype: torch.dtype) -> Adjacency:
        row = column = None
        if reduce == "mean":
            row = mean_scale(self._csr, dtype)
        elif reduce == "gcn":
            row = column = gcn_scale(self._csr, None, dtype)
        return Adjacency(self._csr, row, column)

    def _weighted_gcn(self, weight: Tensor, dtype: torch.dtype) -> Adjacency:
        """The scales of the present weights.

        The owner of the weights can change them by routes that no counter sees (``.data``, a NumPy
        view, inference mode). On a CPU their values are compared with those that the scales were
        made of, which costs a tenth of making them; elsewhere a comparison would wait for the
        device, and the scales are made on every call.
        """
        if weight.device.type != "cpu" or torch.compiler.is_compiling():
            return self._weighted_scales(dtype)
        kept = self._weighted.get(dtype)
        if kept is None or not same(kept[0], weight):
            kept = make(lambda: (weight.detach().clone(), self._weighted_scales(dtype)))
            self._weighted[dtype] = kept
        return kept[1]

    def _weighted_scales(self, dtype: torch.dtype) -> Adjacency:
        weight = self.weight
        assert weight is not None
        scale = gcn_scale(self._csr, weight.detach(), dtype, look=self._look())
        return Adjacency(self._csr, scale, scale)

    def _look(self) -> bool:
        """Whether to look for negative degrees, which on a GPU waits for the device.

        There it is done on first use and, for weights without a gradient, whenever torch's counter
        of changes has moved; never while a CUDA graph is captured or under a compiler.
        """
        weight = self._weight
        if weight is None or torch.compiler.is_compiling():
            return False
        if weight.device.type != "cuda":
            return weight.device.type == "cpu"
        if torch.cuda.is_current_stream_capturing():
            return False
        version = 0 if weight.requires_grad or weight.is_inference() else weight._version
        seen, self._looked_at = self._looked_at, version
        return seen != version

    def gcn_weight(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Weights in CSR order with the symmetric normalisation multiplied in, differentiable.

        Raises:
            ValueError: a degree is negative.
        """
        return gcn_weight(self._csr, weight, dtype, look=self._look())

    def prepare(self, reduce: str = "mean", dtype: torch.dtype = torch.float32) -> Graph:
        """Fills now what aggregation would fill on demand; returns the graph itself.

        Useful before ``torch.compile`` and before anything is timed.
        """
        graph = self.with_self_loops() if check_reduce(reduce) == "gcn" else self
        adjacency = graph.adjacency(reduce, dtype)
        _ = adjacency.t_indptr
        return self

    def __repr__(self) -> str:
        weighted = "" if self._weight is None else ", weighted"
        return (
            f"Graph(num_src={self.num_src}, num_dst={self.num_dst}, num_edges={self.num_edges}, "
            f"device={self.device}{weighted})"
        )


def _from_edge_index(
    edge_index: Tensor,
    num_nodes: int | Sequence[int] | None,
    edge_weight: Tensor | None,
    *,
    keep_order: bool,
) -> Graph:
    edge_index = check_index(edge_index, "edge_index")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"edge_index must have shape [2, E], got {list(edge_index.shape)}")
    num_src, num_dst = _node_counts(edge_index, num_nodes)
    check_ids(edge_index[0], num_src, "edge_index[0]", "source")
    check_ids(edge_index[1], num_dst, "edge_index[1]", "target")
    weight = _check_weight(edge_weight, edge_index.shape[1], "edge_weight", edge_index.device)
    csr = from_edges(edge_index, num_src, num_dst, keep_order=keep_order or weight is not None)
    return Graph(csr, weight, order_kept=keep_order or weight is not None)


def _node_counts(edge_index: Tensor, num_nodes: int | Sequence[int] | None) -> tuple[int, int]:
    if num_nodes is None:
        count = int(edge_index.max()) + 1 if edge_index.numel() else 0
        return count, count
    pair = num_nodes if isinstance(num_nodes, tuple | list) else (num_nodes, num_nodes)
    try:
        counts = [operator.index(n) for n in pair]
    except TypeError:
        counts = []
    if len(counts) != 2 or min(counts) < 0:
        raise ValueError(
            f"num_nodes must be a count >= 0 or a pair (num_src, num_dst), got {num_nodes!r}"
        )
    return counts[0], counts[1]


def _check_weight(
    weight: Tensor | None, num_edges: int, name: str, device: torch.device
) -> Tensor | None:
    if weight is None:
        return None
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        got = weight.dtype if isinstance(weight, Tensor) else type(weight).__name__
        raise TypeError(f"{name} must be a floating-point tensor, got {got}; call .float() first")
    if weight.shape != (num_edges,):
        raise ValueError(
            f"{name} must have shape [{num_edges}], one weight an edge, got {list(weight.shape)}"
        )
    if weight.device != device:
        raise ValueError(
            f"{name} and the edges must be on one device, got {weight.device} and {device}"
        )
    return weight
