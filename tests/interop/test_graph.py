"""One asymmetric weighted graph in every form that another library has, and back."""

from __future__ import annotations

from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch

import maxk
from maxk.graph import cache
from standins import StandInDGLGraph

pytest.importorskip("torch_geometric")
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData

# Asymmetric, unsorted, with a self-loop; node 5 has no edges, nodes 0 and 4 only one kind of them.
EDGES = torch.tensor([[3, 0, 1, 4, 0, 2, 3], [1, 2, 1, 3, 1, 0, 2]])
WEIGHT = torch.tensor([0.5, 2.0, 1.5, 3.0, 0.25, 4.0, 5.0], dtype=torch.float64)
N = 6


def dense(weighted: bool = True) -> torch.Tensor:
    """adj_t[t, s]."""
    matrix = torch.zeros(N, N, dtype=torch.float64)
    matrix[EDGES[1], EDGES[0]] = WEIGHT if weighted else 1.0
    return matrix


def scipy_matrix(kind: str, *, rows: str = "targets") -> scipy.sparse.sparray:
    matrix = dense().numpy()
    array = scipy.sparse.coo_array(matrix if rows == "targets" else matrix.T)
    return getattr(array, f"to{kind}")()


class StandInSparseTensor:
    """The methods of a ``torch_sparse.SparseTensor`` that are called."""

    def __init__(self, weight=WEIGHT):
        self.matrix = dense().to_sparse_csr()
        self.values = None if weight is None else self.matrix.values()

    def csr(self):
        return self.matrix.crow_indices(), self.matrix.col_indices(), self.values

    def coo(self):
        raise NotImplementedError

    def size(self, dim):
        return N

    def sparse_sizes(self):
        return (N, N)


def dgl_graph(edges: torch.Tensor = EDGES, counts=(N, N), **edata) -> StandInDGLGraph:
    return StandInDGLGraph(edges, counts, **edata)


def edge_index_sorted(by: str, *, cached: bool, **more) -> tuple[EdgeIndex, torch.Tensor]:
    """An ``EdgeIndex`` sorted by row or column, and the weights in its order."""
    edges, order = EdgeIndex(EDGES, sparse_size=(N, N), **more).sort_by(by)
    if cached:
        edges.fill_cache_()
    return edges, WEIGHT[order]


def networkx_graph(cls=nx.DiGraph) -> nx.Graph:
    graph = cls()
    graph.add_nodes_from(range(N))
    pairs = EDGES.t().tolist()
    graph.add_weighted_edges_from((s, t, w) for (s, t), w in zip(pairs, WEIGHT, strict=True))
    return graph


INPUTS = {
    "edge_index": lambda: maxk.to_graph(EDGES, N, WEIGHT),
    "edge_index int32": lambda: maxk.to_graph(EDGES.int(), N, WEIGHT),
    "numpy": lambda: maxk.to_graph(EDGES.numpy(), N, WEIGHT),
    "pair": lambda: maxk.to_graph((EDGES[0], EDGES[1]), (N, N), WEIGHT),
    "Graph": lambda: maxk.to_graph(maxk.to_graph(EDGES, N), edge_weight=WEIGHT),
    "EdgeIndex": lambda: maxk.to_graph(EdgeIndex(EDGES, sparse_size=(N, N)), edge_weight=WEIGHT),
    "EdgeIndex no size": lambda: maxk.to_graph(EdgeIndex(EDGES), N, edge_weight=WEIGHT),
    **{
        f"EdgeIndex {by} cached={cached}": lambda by=by, cached=cached: (
            lambda pair: maxk.to_graph(pair[0], edge_weight=pair[1])
        )(edge_index_sorted(by, cached=cached))
        for by in ("row", "col")
        for cached in (False, True)
    },
    "Data": lambda: maxk.to_graph(Data(edge_index=EDGES, edge_weight=WEIGHT, num_nodes=N)),
    "Data edge_attr": lambda: maxk.to_graph(
        Data(edge_index=EDGES, edge_attr=WEIGHT[:, None], num_nodes=N)
    ),
    "Data name": lambda: maxk.to_graph(
        Data(edge_index=EDGES, length=WEIGHT, num_nodes=N), edge_weight="length"
    ),
    "Data EdgeIndex": lambda: (
        lambda pair: maxk.to_graph(Data(edge_index=pair[0], edge_weight=pair[1], num_nodes=N))
    )(edge_index_sorted("col", cached=False)),
    "Data adj_t": lambda: maxk.to_graph(Data(adj_t=dense().to_sparse_csr(), num_nodes=N)),
    "torch CSR": lambda: maxk.to_graph(dense().to_sparse_csr()),
    "torch CSC": lambda: maxk.to_graph(dense().to_sparse_csc()),
    "torch COO": lambda: maxk.to_graph(dense().to_sparse_coo()),
    "torch CSR rows=sources": lambda: maxk.to_graph(dense().t().to_sparse_csr(), rows="sources"),
    "torch CSC rows=sources": lambda: maxk.to_graph(dense().t().to_sparse_csc(), rows="sources"),
    "torch COO rows=sources": lambda: maxk.to_graph(dense().t().to_sparse_coo(), rows="sources"),
    "SparseTensor": lambda: maxk.to_graph(StandInSparseTensor()),
    **{
        f"SciPy {kind}": lambda kind=kind: maxk.to_graph(scipy_matrix(kind))
        for kind in ("csr", "csc", "coo", "lil", "dok")
    },
    "SciPy rows=sources": lambda: maxk.to_graph(
        scipy_matrix("csc", rows="sources"), rows="sources"
    ),
    "NetworkX": lambda: maxk.to_graph(networkx_graph()),
    "NetworkX multi": lambda: maxk.to_graph(networkx_graph(nx.MultiDiGraph)),
    "DGL": lambda: maxk.to_graph(dgl_graph(w=WEIGHT[:, None]), edge_weight="w"),
    "DGL tensor": lambda: maxk.to_graph(dgl_graph(), edge_weight=WEIGHT),
}


@pytest.mark.parametrize("name", INPUTS)
def test_every_form_is_the_same_graph_forward_and_backward(name):
    graph = INPUTS[name]()
    assert (graph.num_src, graph.num_dst, graph.num_edges) == (N, N, EDGES.shape[1])
    x = torch.randn(N, 5, dtype=torch.float64, requires_grad=True)
    if graph.weight.dtype != x.dtype:  # NetworkX holds Python's numbers
        graph = graph.with_weight(graph.edge_weight.double())
    y = maxk.aggregate(graph, x, "sum")
    torch.testing.assert_close(y, dense() @ x, rtol=1e-12, atol=1e-12)
    seed = torch.randn_like(y)
    y.backward(seed)
    torch.testing.assert_close(x.grad, dense().t() @ seed, rtol=1e-12, atol=1e-12)
    # The transpose that some inputs bring along numbers the same edges.
    back = graph.transpose()
    got = maxk.aggregate(back, x.detach(), "sum")
    torch.testing.assert_close(got, dense().t() @ x.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", INPUTS)
def test_every_form_normalises_alike(name):
    graph = INPUTS[name]()
    graph = graph.with_weight(graph.edge_weight.double())
    x = torch.randn(N, 5, dtype=torch.float64)
    want = maxk.Graph.from_edge_index(EDGES, N, WEIGHT)
    for reduce in ("mean", "gcn"):
        torch.testing.assert_close(
            maxk.aggregate(graph, x, reduce), maxk.aggregate(want, x, reduce)
        )


@pytest.mark.parametrize("by", ["row", "col"])
@pytest.mark.parametrize("cached", [False, True])
def test_sorted_edge_index_is_not_sorted_again(by, cached, monkeypatch):
    edges, weight = edge_index_sorted(by, cached=cached)
    sorts = []
    sort, argsort = torch.sort, torch.argsort
    monkeypatch.setattr(torch, "sort", lambda *a, **k: (sorts.append(1), sort(*a, **k))[1])
    monkeypatch.setattr(torch, "argsort", lambda *a, **k: (sorts.append(1), argsort(*a, **k))[1])
    graph = maxk.to_graph(edges, edge_weight=weight)
    if by == "col" or cached:
        assert not sorts
    _ = graph.adjacency("sum", torch.float32).t_indptr
    if cached:
        assert not sorts


def test_weights_get_their_gradient_in_the_order_given():
    weights = {
        "edge_index": (lambda w: maxk.to_graph(EDGES, N, w), EDGES),
        "CSR": (lambda w: maxk.to_graph(csr_with(w)), csr_order()),
        "DGL": (lambda w: maxk.to_graph(dgl_graph(), edge_weight=w), EDGES),
    }
    for make, edges in weights.values():
        w = torch.rand(EDGES.shape[1], dtype=torch.float64, requires_grad=True)
        x = torch.randn(N, 3, dtype=torch.float64)
        seed = torch.randn(N, 3, dtype=torch.float64)
        maxk.aggregate(make(w), x, "sum").backward(seed)
        torch.testing.assert_close(w.grad, (x[edges[0]] * seed[edges[1]]).sum(1))


def csr_order() -> torch.Tensor:
    return maxk.to_graph(dense().to_sparse_csr()).edge_index()


def csr_with(weight: torch.Tensor) -> torch.Tensor:
    csr = dense().to_sparse_csr()
    return torch.sparse_csr_tensor(csr.crow_indices(), csr.col_indices(), weight, size=(N, N))


class TestDirectCalls:
    """The same objects handed to ``aggregate`` and to layers, without to_graph."""

    @pytest.mark.parametrize("form", ["csr", "csc", "coo", "EdgeIndex", "SparseTensor"])
    def test_layers_take_them_and_convert_once(self, form):
        edges = {
            "csr": lambda: dense(weighted=False).to_sparse_csr(),
            "csc": lambda: dense(weighted=False).to_sparse_csc(),
            "coo": lambda: dense(weighted=False).to_sparse_coo(),
            "EdgeIndex": lambda: EdgeIndex(EDGES),
            "SparseTensor": lambda: StandInSparseTensor(None),
        }[form]()
        x = torch.randn(N, 4)
        h = maxk.maxk(x, 2)
        for conv in (maxk.nn.SAGEConv(4, 3), maxk.nn.GCNConv(4, 3)):
            torch.testing.assert_close(conv(x, edges), conv(x, EDGES))
            torch.testing.assert_close(conv(h, edges), conv(h, EDGES))
        assert cache.graph_of(edges, N) is cache.graph_of(edges, N)

    def test_changed_values_are_seen(self):
        adj_t = dense().to_sparse_csr()
        x = torch.randn(N, 4, dtype=torch.float64)
        before = maxk.aggregate(adj_t, x, "sum")
        adj_t.values().mul_(2)
        torch.testing.assert_close(maxk.aggregate(adj_t, x, "sum"), 2 * before)

    def test_values_of_a_matrix_get_gradients(self):
        weight = torch.rand(EDGES.shape[1], dtype=torch.float64, requires_grad=True)
        adj_t = csr_with(weight)
        x = torch.randn(N, 3, dtype=torch.float64)
        for _ in range(2):
            weight.grad = None
            maxk.aggregate(adj_t, x, "sum").sum().backward(retain_graph=True)
            s, _ = csr_order()
            torch.testing.assert_close(weight.grad, x[s].sum(1))

    def test_two_weights_are_refused(self):
        with pytest.raises(ValueError, match="holds weights of its own"):
            maxk.nn.GCNConv(4, 3)(torch.randn(N, 4), dense().float().to_sparse_csr(), WEIGHT)

    def test_bipartite_edge_index(self):
        edges = torch.tensor([[0, 1, 2, 2], [1, 0, 0, 1]])
        x = (torch.randn(3, 4), torch.randn(2, 5))
        conv = maxk.nn.SAGEConv((4, 5), 3)
        want = conv(x, maxk.Graph.from_edge_index(edges, (3, 2)))
        torch.testing.assert_close(conv(x, edges), want)
        alone = maxk.nn.SAGEConv(4, 3, root_weight=False)
        assert alone((x[0], None), edges, size=(3, 2)).shape == (2, 3)


class TestBack:
    @pytest.fixture(params=[torch.float32, torch.float64, None])
    def weight(self, request):
        return None if request.param is None else WEIGHT.to(request.param)

    def test_pyg(self, weight):
        data = maxk.interop.to_pyg(maxk.to_graph(EDGES, N, weight))
        assert torch.equal(data.edge_index, EDGES)
        assert data.num_nodes == N
        assert ("edge_weight" in data) == (weight is not None)
        if weight is not None:
            assert torch.equal(data.edge_weight, weight)
            assert data.edge_weight.dtype == weight.dtype
        again = maxk.interop.to_pyg(maxk.to_graph(data))
        assert torch.equal(again.edge_index, EDGES)

    def test_adj_t(self, weight):
        adj_t = maxk.interop.to_adj_t(maxk.to_graph(EDGES, N, weight))
        assert adj_t.dtype == (weight.dtype if weight is not None else torch.float32)
        torch.testing.assert_close(adj_t.to_dense().double(), dense(weight is not None))
        assert (maxk.to_graph(adj_t).edge_weight is None) == (weight is None)

    @pytest.mark.parametrize("rows", ["targets", "sources"])
    def test_scipy(self, weight, rows):
        matrix = maxk.interop.to_scipy(maxk.to_graph(EDGES, N, weight), rows=rows)
        want = dense(weight is not None).numpy()
        np.testing.assert_array_equal(matrix.toarray(), want if rows == "targets" else want.T)
        if weight is not None:
            assert matrix.dtype == weight.numpy().dtype
        again = maxk.to_graph(matrix, rows=rows)
        assert again.num_src == N
        x = torch.randn(N, 2, dtype=torch.float64)
        again = again.with_weight(None if weight is None else again.edge_weight.double())
        torch.testing.assert_close(maxk.aggregate(again, x, "sum"), dense(weight is not None) @ x)

    def test_networkx(self, weight):
        graph = maxk.to_graph(EDGES, N, weight)
        theirs = maxk.interop.to_networkx(graph)
        assert list(theirs.nodes) == list(range(N))
        assert set(theirs.edges) == {tuple(pair) for pair in EDGES.t().tolist()}
        if weight is not None:
            for (s, t), w in zip(EDGES.t().tolist(), weight.tolist(), strict=True):
                assert theirs.edges[s, t]["weight"] == w

    def test_dgl(self, weight, monkeypatch):
        made = []

        def graph(ends, num_nodes):
            made.append(dgl_graph(torch.stack(ends), (num_nodes, num_nodes)))
            return made[0]

        monkeypatch.setitem(__import__("sys").modules, "dgl", SimpleNamespace(graph=graph))
        theirs = maxk.interop.to_dgl(maxk.to_graph(EDGES, N, weight))
        assert torch.equal(theirs.edges_, EDGES)
        assert theirs.counts == (N, N)
        again = maxk.to_graph(theirs, edge_weight=None if weight is None else "w")
        assert torch.equal(maxk.interop.to_pyg(again).edge_index, EDGES)

    def test_dgl_bipartite(self, monkeypatch):
        def heterograph(edges, num_nodes_dict):
            ((kind, ends),) = edges.items()
            counts = (num_nodes_dict[kind[0]], num_nodes_dict[kind[2]])
            return dgl_graph(torch.stack(ends), counts)

        stand_in = SimpleNamespace(heterograph=heterograph)
        monkeypatch.setitem(__import__("sys").modules, "dgl", stand_in)
        edges = torch.tensor([[0, 4, 2], [1, 1, 0]])
        again = maxk.to_graph(maxk.interop.to_dgl(maxk.to_graph(edges, (5, 3))))
        assert (again.num_src, again.num_dst) == (5, 3)
        assert torch.equal(again.edge_index(), maxk.to_graph(edges, (5, 3)).edge_index())


def test_undirected_networkx_counts_both_ways_and_loops_once():
    theirs = nx.Graph()
    theirs.add_nodes_from("abcd")
    theirs.add_edge("a", "b", weight=2.0)
    theirs.add_edge("b", "c")
    theirs.add_edge("c", "c", weight=5.0)
    graph = maxk.to_graph(theirs)
    want = nx.to_scipy_sparse_array(theirs).toarray()
    np.testing.assert_array_equal(maxk.interop.to_scipy(graph).toarray(), want)
    assert graph.num_src == 4


def test_parallel_edges_need_a_multigraph():
    graph = maxk.to_graph(torch.tensor([[0, 0], [1, 1]]), 2)
    with pytest.raises(ValueError, match=r"1 parallel edges.*multigraph=True"):
        maxk.interop.to_networkx(graph)
    assert maxk.interop.to_networkx(graph, multigraph=True).number_of_edges() == 2
    assert maxk.to_graph(maxk.interop.to_networkx(graph, multigraph=True)).num_edges == 2


def test_edge_type_of_heterodata():
    data = HeteroData()
    data["paper"].num_nodes, data["author"].num_nodes = 3, 2
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 1], [2, 0, 1]])
    graph = maxk.to_graph(data["author", "writes", "paper"])
    assert (graph.num_src, graph.num_dst) == (2, 3)
    with pytest.raises(ValueError, match=r"author.*writes.*paper"):
        maxk.to_graph(data)


def test_matrix_of_ones_is_unweighted():
    assert maxk.to_graph(dense(weighted=False).to_sparse_csr()).edge_weight is None
    assert maxk.to_graph(dense().bool().to_sparse_csr()).edge_weight is None
    assert maxk.to_graph((dense() * 4).int().to_sparse_csr()).edge_weight.dtype == torch.float32
    assert maxk.to_graph(scipy_matrix("csr").astype(bool)).edge_weight is None


def test_wide_edge_features_are_no_weights():
    data = Data(edge_index=EDGES, edge_attr=torch.rand(EDGES.shape[1], 3), num_nodes=N)
    assert maxk.to_graph(data).edge_weight is None


@pytest.mark.parametrize(("call", "error", "text"), [
    (lambda: maxk.to_graph("cora"), TypeError, "source must be a PyG Data"),
    (lambda: maxk.to_graph(Data(num_nodes=3)), ValueError, "it has no edges"),
    (lambda: maxk.to_graph(EDGES, rows="sources"), ValueError, r"edge_index.flip\(0\)"),
    (lambda: maxk.to_graph(networkx_graph(), rows="sources"), ValueError, "belongs to a sparse"),
    (lambda: maxk.to_graph(EDGES, rows="columns"), ValueError, "rows must be"),
    (lambda: maxk.to_graph(EDGES, 3), ValueError, "source id 3 at position 0"),
    (lambda: maxk.to_graph(dense().to_sparse_csr(), 7), ValueError, "asks for 7 source nodes"),
    (lambda: maxk.to_graph(networkx_graph(), 7), ValueError, "asks for 7 source nodes"),
    (lambda: maxk.to_graph(EDGES, (1, 2, 3)), ValueError, "num_nodes must be"),
    (lambda: maxk.to_graph(EDGES, N, "w"), ValueError, "names data of a PyG"),
    (lambda: maxk.to_graph(dense().to_sparse_csr(), None, WEIGHT), ValueError, "of its own"),
    (lambda: maxk.to_graph(networkx_graph(), None, "cost"), ValueError, "data named 'cost'"),
    (lambda: maxk.to_graph(dgl_graph(), None, "w"), ValueError, "no edge data named 'w'"),
    (lambda: maxk.to_graph(Data(edge_index=EDGES), None, "w"), ValueError, "no tensor named 'w'"),
    (lambda: maxk.to_graph(EdgeIndex(EDGES, sort_order="row")), ValueError, "row 0 of it falls"),
    (lambda: maxk.to_graph(torch.eye(2).to_sparse_bsr(1)), TypeError, "CSR, CSC or COO"),
    (lambda: maxk.interop.to_pyg(maxk.to_graph(EDGES, (N, 9))), ValueError, "one set of nodes"),
    (lambda: maxk.interop.to_scipy(maxk.to_graph(EDGES, N, WEIGHT.half())), TypeError, "cast them"),
])  # fmt: skip
def test_bad_input(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_several_edge_types_of_dgl_are_refused():
    theirs = dgl_graph()
    theirs.canonical_etypes = [("a", "x", "b"), ("b", "y", "a")]
    with pytest.raises(ValueError, match="several edge types"):
        maxk.to_graph(theirs)
