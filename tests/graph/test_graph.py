from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse
import torch

import maxk
from graphs import dense_matrix, random_graph
from maxk.graph import cache


def test_edges_in_any_order_give_the_same_result():
    pairs = [((2, 0), 10.0), ((0, 1), 1.0), ((1, 0), 100.0)]
    x = torch.tensor([[1.0], [2.0], [3.0]])
    for order in itertools.permutations(pairs):
        edges = torch.tensor([p for p, _ in order]).t()
        weight = torch.tensor([w for _, w in order], requires_grad=True)
        y = maxk.aggregate(maxk.Graph.from_edge_index(edges, 3, weight), x, "sum")
        y.sum().backward()
        assert y.flatten().tolist() == [230.0, 1.0, 0.0]
        assert weight.grad.tolist() == [x[s].item() for (s, _), _ in order]


def test_index_dtypes():
    edges = torch.tensor([[2, 0, 1], [0, 1, 0]])
    want = maxk.Graph.from_edge_index(edges)
    for given in (edges.int(), edges.to(torch.int16)):
        got = maxk.Graph.from_edge_index(given)
        assert torch.equal(got.indptr, want.indptr)
        assert torch.equal(got.indices, want.indices)
    mixed = maxk.Graph.from_csr(want.indptr.long(), want.indices.int())
    assert torch.equal(mixed.indices, want.indices)
    with pytest.raises(
        TypeError, match=r"edge_index must hold int64 or int32 ids, got torch.float32"
    ):
        maxk.Graph.from_edge_index(edges.float())
    with pytest.raises(TypeError, match="indices must hold"):
        maxk.Graph.from_csr(want.indptr, want.indices.double())


@pytest.mark.parametrize(("edges", "text"), [
    ([[3], [0]], r"edge_index\[0\] holds the source id 3 at position 0.*3 source nodes \(ids 0..2"),
    ([[0, -1], [1, 0]], r"source id -1 at position 1"),
    ([[0, 1, 2], [1, 2, 7]], r"edge_index\[1\] holds the target id 7 at position 2"),
])  # fmt: skip
def test_ids_outside_the_graph(edges, text):
    with pytest.raises(ValueError, match=text):
        maxk.Graph.from_edge_index(torch.tensor(edges), 3)


@pytest.mark.parametrize(("edges", "text"), [
    (torch.zeros(3, 2, dtype=torch.int64), r"shape \[2, E\], got \[3, 2\]"),
    (torch.zeros(4, dtype=torch.int64), r"shape \[2, E\], got \[4\]"),
])  # fmt: skip
def test_shape_of_edges(edges, text):
    with pytest.raises(ValueError, match=text):
        maxk.Graph.from_edge_index(edges)


@pytest.mark.parametrize("num_nodes", [-1, (3,), (1, 2, 3), (2, -1), "3", 3.0, (1, 2.5)])
def test_bad_node_counts(num_nodes):
    with pytest.raises(ValueError, match="num_nodes must be a count >= 0 or a pair"):
        maxk.Graph.from_edge_index(torch.tensor([[0], [0]]), num_nodes)


@pytest.mark.parametrize(("weight", "error", "text"), [
    (torch.ones(2, dtype=torch.int64), TypeError, "floating-point tensor, got torch.int64"),
    (torch.ones(3), ValueError, r"shape \[2\], one weight an edge, got \[3\]"),
    ([1.0, 2.0], TypeError, "got list"),
])  # fmt: skip
def test_bad_weights(weight, error, text):
    with pytest.raises(error, match=text):
        maxk.Graph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), 2, weight)


@pytest.mark.parametrize(("indptr", "indices", "text"), [
    ([1, 2], [0], "must start at 0, got 1"),
    ([0, 2], [0], r"end at the number of entries in indices \(1\), got 2"),
    ([0, 2, 1, 3], [0, 0, 0], "never fall, got 2 then 1 at row 1"),
    ([], [], r"shape \[M \+ 1\]"),
    ([0, 2**31], [0], f"got {2**31}"),
])  # fmt: skip
def test_bad_row_pointers(indptr, indices, text):
    with pytest.raises(ValueError, match=text):
        maxk.Graph.from_csr(
            torch.tensor(indptr, dtype=torch.int64), torch.tensor(indices, dtype=torch.int64)
        )


def test_directed_graph_uses_the_transpose_backward():
    graph = maxk.Graph.from_edge_index(torch.tensor([[0, 1], [1, 2]]), 3)
    x = torch.tensor([[1.0], [10], [100]], requires_grad=True)
    y = maxk.aggregate(graph, maxk.maxk(x, 1), "sum")
    y.backward(torch.tensor([[5.0], [7], [11]]))
    assert y.flatten().tolist() == [0, 1, 10]
    assert x.grad.flatten().tolist() == [7, 11, 0]


def test_all_inputs_agree_on_an_asymmetric_graph():
    graph = random_graph(7, 7, 20, weighted=True)
    matrix = dense_matrix(graph, "sum")
    again = [
        maxk.Graph.from_csr(graph.indptr, graph.indices, graph.weight),
        maxk.Graph.from_edge_index(graph.edge_index(), 7, graph.weight),
        graph.transpose().transpose(),
    ]
    for other in again:
        np.testing.assert_array_equal(dense_matrix(other, "sum"), matrix)
    # SciPy adds parallel edges up.
    sparse = scipy.sparse.coo_matrix(matrix)
    for other in (maxk.Graph.from_scipy(sparse), maxk.Graph.from_scipy(sparse.tocsc())):
        np.testing.assert_array_equal(dense_matrix(other, "sum"), matrix)
    np.testing.assert_array_equal(dense_matrix(graph.transpose(), "sum"), matrix.T)


def test_scipy_of_ones_is_unweighted():
    graph = maxk.Graph.from_scipy(scipy.sparse.eye(3, 4, dtype=np.int8, format="csr"))
    assert graph.edge_weight is None
    assert (graph.num_dst, graph.num_src) == (3, 4)
    with pytest.raises(TypeError, match="SciPy sparse matrix, got ndarray"):
        maxk.Graph.from_scipy(np.eye(3))


def test_only_missing_self_loops_are_added():
    graph = maxk.Graph.from_edge_index(torch.tensor([[0, 1, 0], [1, 0, 0]]))
    filled = graph.with_self_loops()
    assert filled.num_edges == 4
    assert filled.with_self_loops() is filled
    assert graph.with_self_loops() is filled
    y = maxk.aggregate(graph, torch.tensor([[1.0], [3.0]]), "gcn")
    torch.testing.assert_close(y, torch.tensor([[2.0], [2.0]]))


def test_parallel_edges_each_count():
    edges = torch.tensor([[0, 0], [1, 1]])
    x = torch.tensor([[2.0], [0.0]])
    assert maxk.aggregate(maxk.Graph.from_edge_index(edges, 2), x, "sum")[1].item() == 4
    assert maxk.aggregate(maxk.Graph.from_edge_index(edges, 2), x, "mean")[1].item() == 2
    weight = torch.tensor([0.5, 1.5], requires_grad=True)
    y = maxk.aggregate(maxk.Graph.from_edge_index(edges, 2, weight), x, "sum")
    y[1].sum().backward()
    assert y[1].item() == 4
    assert weight.grad.tolist() == [2, 2]


def test_isolated_nodes_get_zero():
    junk = torch.full((3, 2), float("nan"))
    del junk
    graph = maxk.Graph.from_edge_index(torch.tensor([[0], [1]]), 3)
    x = torch.tensor([[1.0, 2], [3, 4], [5, 6]], requires_grad=True)
    y = maxk.aggregate(graph, maxk.maxk(x, 2), "mean")
    y.sum().backward()
    assert y.tolist() == [[0, 0], [1, 2], [0, 0]]
    assert x.grad.tolist() == [[1, 1], [0, 0], [0, 0]]


def test_degrees_and_repr():
    graph = maxk.Graph.from_edge_index(torch.tensor([[0, 0, 1], [2, 2, 0]]), 3)
    assert graph.in_degrees().tolist() == [1, 0, 2]
    assert graph.out_degrees().tolist() == [2, 1, 0]
    assert repr(graph) == "Graph(num_src=3, num_dst=3, num_edges=3, device=cpu)"


class TestWeightsThatLearn:
    """A graph outlives many steps of its weights; what is derived from it must follow them."""

    EDGES = torch.tensor([[2, 0, 1, 0], [0, 1, 0, 2]])
    X = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64)

    def fresh(self, weight, reduce, derive):
        leaf = weight.detach().clone().requires_grad_()
        y = maxk.aggregate(derive(maxk.Graph.from_edge_index(self.EDGES, 3, leaf)), self.X, reduce)
        y.sin().sum().backward()
        return y.detach(), leaf.grad

    @pytest.mark.parametrize("reduce", ["sum", "mean", "gcn"])
    @pytest.mark.parametrize("derive", [
        lambda g: g, lambda g: g.transpose(), lambda g: g.with_self_loops(),
        lambda g: g.with_self_loops().transpose(), lambda g: g.transpose().with_self_loops(),
    ], ids=["plain", "transposed", "filled", "filled-transposed", "transposed-filled"])  # fmt: skip
    def test_every_step_sees_the_present_weights(self, reduce, derive):
        weight = torch.tensor([10.0, 1, 100, 7], dtype=torch.float64, requires_grad=True)
        graph = derive(maxk.Graph.from_edge_index(self.EDGES, 3, weight))
        for step in range(3):
            want, grad = self.fresh(weight, reduce, derive)
            with torch.no_grad():
                torch.testing.assert_close(maxk.aggregate(graph, self.X, reduce), want)
            y = maxk.aggregate(graph, self.X, reduce)
            y.sin().sum().backward()
            torch.testing.assert_close(y.detach(), want)
            torch.testing.assert_close(weight.grad, grad)
            weight.grad = None
            with torch.no_grad():
                weight.mul_(0.5).add_(step)

    def test_weights_without_gradient_that_change_in_place(self):
        weight = torch.tensor([10.0, 1, 100, 7], dtype=torch.float64)
        graph = maxk.Graph.from_edge_index(self.EDGES, 3, weight)
        for _ in range(2):
            want = self.fresh(weight, "gcn", lambda g: g)[0]
            torch.testing.assert_close(maxk.aggregate(graph, self.X, "gcn"), want)
            kept = graph.with_self_loops().adjacency("gcn", torch.float64)
            assert graph.with_self_loops().adjacency("gcn", torch.float64) is kept
            weight += 3

    def test_other_weights_follow_the_callers_order(self):
        ones = maxk.Graph.from_edge_index(self.EDGES, 3, torch.ones(4, dtype=torch.float64))
        weight = torch.tensor([10.0, 1, 100, 7], dtype=torch.float64)
        y = maxk.aggregate(ones.with_weight(weight), self.X, "sum")
        assert y.flatten().tolist() == [230, 1, 7]
        y = maxk.aggregate(ones.transpose().with_weight(weight), self.X, "sum")
        assert y.flatten().tolist() == [23, 100, 10]
        with pytest.raises(ValueError, match=r"shape \[4\], one weight an edge, got \[5\]"):
            ones.with_weight(torch.ones(5))
        unweighted = maxk.Graph.from_edge_index(self.EDGES, 3)
        with pytest.raises(ValueError, match="must follow the order of the edge list, which a gra"):
            unweighted.with_weight(weight)
        assert unweighted.with_weight(None).edge_weight is None


def test_a_narrow_id_is_compared_with_a_wide_count():
    edges = torch.tensor([[5, -1], [0, 0]], dtype=torch.int16)
    with pytest.raises(ValueError, match=r"source id -1 at position 1.*ids 0\.\.39999"):
        maxk.Graph.from_edge_index(edges, 40_000)
    narrow = maxk.Graph.from_edge_index(torch.tensor([[0, 2], [1, 1]], dtype=torch.uint8), 300)
    assert (narrow.num_src, narrow.num_edges) == (300, 2)


@pytest.mark.parametrize("num_nodes", [np.int64(4), torch.tensor(4), [4, 4], torch.Size([4, 4])])
def test_node_counts_of_any_integer_type(num_nodes):
    graph = maxk.Graph.from_edge_index(torch.tensor([[0], [1]]), num_nodes)
    assert repr(graph) == "Graph(num_src=4, num_dst=4, num_edges=1, device=cpu)"


def test_a_sparse_matrix_that_changes_is_converted_again():
    matrix = torch.eye(3).to_sparse_csr()
    first = cache.graph_of_matrix(matrix)
    assert cache.graph_of_matrix(matrix) is first
    matrix.col_indices().copy_(torch.tensor([1, 2, 0]))
    assert cache.graph_of_matrix(matrix).indices.tolist() == [1, 2, 0]
    assert first.indices.tolist() == [0, 1, 2]
    matrix.values().mul_(5)
    assert cache.graph_of_matrix(matrix).weight.tolist() == [5, 5, 5]


def test_other_weights_on_the_same_edges_sort_nothing_again(monkeypatch):
    edges = torch.tensor([[0, 1, 2], [1, 2, 2]])
    x = torch.eye(3)
    graph = maxk.Graph.from_edge_index(edges, 3, torch.tensor([2.0, 3.0, 4.0]))
    maxk.aggregate(graph, x, "gcn")
    sorts, sort = [], torch.sort
    monkeypatch.setattr(torch, "sort", lambda *a, **k: (sorts.append(1), sort(*a, **k))[1])
    other = torch.tensor([5.0, 6.0, 7.0])
    got = maxk.aggregate(graph.with_weight(other), x, "gcn")
    assert not sorts
    torch.testing.assert_close(
        got, maxk.aggregate(maxk.Graph.from_edge_index(edges, 3, other), x, "gcn")
    )


class TestEdgeIndexCache:
    def test_same_tensor_is_converted_once(self):
        edges = torch.tensor([[0, 1], [1, 2]])
        assert cache.graph_of(edges, 3) is cache.graph_of(edges, 3)
        assert cache.graph_of(edges, 4) is not cache.graph_of(edges, 3)

    def test_every_kind_of_change_is_seen(self):
        array = np.array([[0, 1], [1, 2]])
        edges = torch.from_numpy(array)
        x = torch.tensor([[1.0], [10.0], [100.0]])
        assert maxk.aggregate(edges, x, "sum").flatten().tolist() == [0, 1, 10]
        edges[1, 0] = 2
        assert maxk.aggregate(edges, x, "sum").flatten().tolist() == [0, 0, 11]
        edges.data[0, 0] = 2
        assert maxk.aggregate(edges, x, "sum").flatten().tolist() == [0, 0, 110]
        array[1, 1] = 0
        assert maxk.aggregate(edges, x, "sum").flatten().tolist() == [10, 0, 100]

    def test_forgotten_with_its_tensor(self):
        edges = torch.tensor([[0, 1], [1, 2]])
        cache.graph_of(edges, 3)
        key = id(edges)
        assert key in cache._entries
        del edges
        assert key not in cache._entries

    def test_weights_change_without_a_new_conversion(self):
        edges = torch.tensor([[1, 0], [0, 1]])
        x = torch.tensor([[1.0], [10.0]])
        for weight in ([2.0, 3.0], [5.0, 7.0]):
            w = torch.tensor(weight, requires_grad=True)
            y = maxk.aggregate(edges, x, "sum", edge_weight=w)
            y.sum().backward()
            assert y.flatten().tolist() == [10 * weight[0], weight[1]]
            assert w.grad.tolist() == [10, 1]
