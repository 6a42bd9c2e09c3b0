"""What aggregation promises on every graph."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import maxk
from graphs import dense_matrix
from properties.strategies import Edges, Features, edges, features

REDUCES = st.sampled_from(["sum", "mean"])
DTYPES = st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16])


def operand(
    shape: Features, rows: int, compressed: bool, dtype, device
) -> maxk.CBSR | torch.Tensor:
    """Features by the definition, so that only the aggregation is under test."""
    x = shape.dense(rows, dtype, device)
    return maxk.CBSR.from_dense(x, shape.k) if compressed else x


def as_dense(h: maxk.CBSR | torch.Tensor) -> torch.Tensor:
    return h.to_dense() if isinstance(h, maxk.CBSR) else h


def shuffled(graph: Edges, order: list[int]) -> Edges:
    weight = None if graph.weight is None else tuple(graph.weight[e] for e in order)
    return Edges(tuple(graph.pairs[e] for e in order), graph.counts, weight)


@given(graph=edges(), shape=features(), compressed=st.booleans(), dtype=DTYPES)
def test_sum_is_the_dense_product(implementation, device, graph, shape, compressed, dtype):
    h = operand(shape, graph.counts[0], compressed, dtype, device)
    y = maxk.aggregate(graph.graph(device, dtype), h, "sum", implementation=implementation)
    want = graph.matrix() @ as_dense(h).double().cpu().numpy()
    # Whole numbers add up exactly in float32, so the low formats round once, at the end.
    assert torch.equal(y.cpu(), torch.from_numpy(want).to(dtype))


@given(graph=edges(square=True), shape=features(), compressed=st.booleans(), data=st.data())
def test_every_implementation_is_the_reference(
    implementation, device, graph, shape, compressed, data
):
    reduce = data.draw(st.sampled_from(["sum", "mean", "gcn"]))
    if reduce == "gcn" and graph.weight is not None:
        # The root of a negative degree is NaN, as it is elsewhere.
        graph = Edges(graph.pairs, graph.counts, tuple(abs(w) + 1 for w in graph.weight))
    results = []
    for name, place in [("reference", "cpu"), (implementation, device)]:
        weight = graph.values()
        if weight is not None:
            weight = weight.to(place).requires_grad_()
        g = maxk.Graph.from_edge_index(graph.index().to(place), graph.counts, weight)
        x = shape.dense(graph.counts[0], device=place).detach().requires_grad_()
        h = maxk.maxk(x, shape.k, implementation=name) if compressed else x
        y = maxk.aggregate(g, h, reduce, implementation=name)
        y.backward(shape.dense(graph.counts[1], device=place) + 1)
        results.append(
            [t.detach().cpu() for t in (y, x.grad, *([] if weight is None else [weight.grad]))]
        )
    for got, want in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@given(graph=edges(square=True, weighted=False), shape=features(), compressed=st.booleans())
def test_gcn_is_its_formula(implementation, device, graph, shape, compressed):
    h = operand(shape, graph.counts[0], compressed, torch.float64, device)
    y = maxk.aggregate(graph.graph(device), h, "gcn", implementation=implementation)
    want = dense_matrix(graph.graph(), "gcn") @ as_dense(h).cpu().numpy()
    np.testing.assert_allclose(y.cpu(), want, rtol=1e-12, atol=1e-12)


@given(graph=edges(), shape=features(), reduce=REDUCES, a=st.integers(-3, 3), b=st.integers(-3, 3))
def test_linear_in_the_features(implementation, device, graph, shape, reduce, a, b):
    g = graph.graph(device)
    x = operand(shape, graph.counts[0], True, torch.float64, device)
    z = x.with_values(x.values.flip(0) + 1)
    f = lambda h: maxk.aggregate(g, h, reduce, implementation=implementation)  # noqa: E731
    together = f(x.with_values(a * x.values + b * z.values))
    torch.testing.assert_close(together, a * f(x) + b * f(z), rtol=1e-12, atol=1e-12)


@given(graph=edges(weighted=True), shape=features(), compressed=st.booleans(), a=st.integers(-3, 3))
def test_linear_in_the_weights(implementation, device, graph, shape, compressed, a):
    h = operand(shape, graph.counts[0], compressed, torch.float64, device)
    g = graph.graph(device)
    ones = torch.ones_like(g.edge_weight)
    f = lambda w: maxk.aggregate(g.with_weight(w), h, "sum", implementation=implementation)  # noqa: E731
    assert torch.equal(f(a * g.edge_weight + ones), a * f(g.edge_weight) + f(ones))


@given(graph=edges(), shape=features(), compressed=st.booleans(), reduce=REDUCES, data=st.data())
def test_order_of_edges_plays_no_part(
    implementation, device, graph, shape, compressed, reduce, data
):
    order = data.draw(st.permutations(range(len(graph.pairs))))
    h = operand(shape, graph.counts[0], compressed, torch.float64, device)
    results, grads = [], []
    for g in (graph, shuffled(graph, order)):
        weight = g.values()
        if weight is not None:
            weight.requires_grad_()
        made = maxk.Graph.from_edge_index(g.index(), g.counts, weight).to(device)
        y = maxk.aggregate(made, h, reduce, implementation=implementation)
        results.append(y.detach())
        if weight is not None:
            y.sum().backward()
            grads.append(weight.grad)
    torch.testing.assert_close(results[1], results[0], rtol=1e-14, atol=0)
    if grads:
        torch.testing.assert_close(grads[1], grads[0][list(order)], rtol=1e-14, atol=0)


@given(graph=edges(), shape=features(), compressed=st.booleans(), reduce=REDUCES, data=st.data())
def test_names_of_nodes_play_no_part(
    implementation, device, graph, shape, compressed, reduce, data
):
    source = data.draw(st.permutations(range(graph.counts[0])))
    target = data.draw(st.permutations(range(graph.counts[1])))
    pairs = tuple((source[s], target[t]) for s, t in graph.pairs)
    x = shape.dense(graph.counts[0], device=device)
    renamed = torch.empty_like(x)
    renamed[list(source)] = x
    results = []
    for g, rows in [(graph, x), (Edges(pairs, graph.counts, graph.weight), renamed)]:
        h = maxk.maxk(rows, shape.k, implementation=implementation) if compressed else rows
        results.append(maxk.aggregate(g.graph(device), h, reduce, implementation=implementation))
    assert torch.equal(results[1][list(target)], results[0])


@given(graph=edges(), shape=features(), compressed=st.booleans())
def test_transposed_twice_is_the_graph(implementation, device, graph, shape, compressed):
    g = graph.graph(device)
    back = g.transpose().transpose()
    assert torch.equal(back.indptr, g.indptr)
    assert torch.equal(back.indices, g.indices)
    assert (back.num_src, back.num_dst) == (g.num_src, g.num_dst)
    if graph.weight is not None:
        assert torch.equal(back.weight, g.weight)
        assert torch.equal(back.edge_weight, g.transpose().edge_weight)
    h = operand(shape, graph.counts[0], compressed, torch.float64, device)
    y = maxk.aggregate(back, h, "sum", implementation=implementation)
    assert torch.equal(y, maxk.aggregate(g, h, "sum", implementation=implementation))


@given(graph=edges(), shape=features(), compressed=st.booleans())
def test_transpose_is_the_adjoint(implementation, device, graph, shape, compressed):
    """<A h, z> = <h, A^T z>, also as the backward pass sees it."""
    g = graph.graph(device)
    h = operand(shape, graph.counts[0], compressed, torch.float64, device)
    z = Features(shape.width, shape.k, shape.layout, shape.seed + 1).dense(
        graph.counts[1], device=device
    )
    forward = maxk.aggregate(g, h, "sum", implementation=implementation)
    backward = maxk.aggregate(g.transpose(), z, "sum", implementation=implementation)
    assert (forward * z).sum() == (as_dense(h) * backward).sum()
    x = as_dense(h).detach().requires_grad_()
    maxk.aggregate(g, x, "sum", implementation=implementation).backward(z)
    assert torch.equal(x.grad, backward)


@given(graph=edges(square=True), shape=features())
def test_filled_self_loops(implementation, device, graph, shape):
    filled = graph.graph(device).with_self_loops()
    loops = {s for s, t in graph.pairs if s == t}
    missing = [n for n in range(graph.counts[0]) if n not in loops]
    assert filled.num_edges == len(graph.pairs) + len(missing)
    assert filled.with_self_loops() is filled
    want = graph.matrix()
    want[missing, missing] += 1
    x = shape.dense(graph.counts[0], device=device)
    y = maxk.aggregate(filled, x, "sum", implementation=implementation)
    np.testing.assert_array_equal(y.cpu(), want @ x.cpu().numpy())


@given(
    graph=edges(square=True, weighted=True), shape=features(), compressed=st.booleans(),
    reduce=st.sampled_from(["sum", "mean", "gcn"]),
)  # fmt: skip
def test_gradients_by_finite_differences(implementation, device, graph, shape, compressed, reduce):
    assume(1 <= graph.counts[0] <= 6 and len(graph.pairs) <= 20 and shape.width <= 5)
    weight = (graph.values().abs() / 4 + 0.5).to(device).requires_grad_()
    x = shape.distinct(graph.counts[0]).to(device).requires_grad_()
    index = graph.index().to(device)

    def f(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        g = maxk.Graph.from_edge_index(index, graph.counts, weight)
        h = maxk.maxk(x, shape.k, implementation=implementation) if compressed else x
        return maxk.aggregate(g, h, reduce, implementation=implementation)

    assert torch.autograd.gradcheck(f, (x, weight), fast_mode=True)
