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


@pytest.mark.parametrize("num_nodes", [-1, (3,), (1, 2, 3), (2, -1), "3"])
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
