from __future__ import annotations

import numpy as np
import pytest
import torch

import maxk
from graphs import dense_matrix, random_graph, star
from maxk.ops.maxk.reference import scatter

REDUCES = ["sum", "mean", "gcn"]


def features(n, width, k, dtype=torch.float64, seed=1):
    x = torch.randn(n, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x.to(dtype) if k is None else maxk.CBSR.from_dense(x.to(dtype), k)


def as_dense(h):
    return h.to_dense() if isinstance(h, maxk.CBSR) else h


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("width", "k"), [
    (1, 1), (5, 2), (33, 1), (33, 33), (64, 8), (127, 40), (256, 16), (257, 16), (300, None),
    (7, None),
])  # fmt: skip
def test_matches_dense_matrix(implementation, device, reduce, weighted, width, k):
    graph = random_graph(41, 41, 300, weighted=weighted)
    h = features(41, width, k)
    y = maxk.aggregate(graph.to(device), h.to(device), reduce, implementation=implementation)
    want = dense_matrix(graph, reduce) @ as_dense(h).numpy()
    np.testing.assert_allclose(y.cpu().numpy(), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("k", [8, None])
@pytest.mark.parametrize("reduce", REDUCES)
def test_low_precision_rounds_once(implementation, device, dtype, k, reduce):
    graph = random_graph(50, 50, 2000, weighted=False)
    h = features(50, 64, k, dtype)
    y = maxk.aggregate(graph.to(device), h.to(device), reduce, implementation=implementation)
    want = dense_matrix(graph, reduce) @ as_dense(h).double().numpy()
    assert y.dtype == dtype
    error = np.abs(y.double().cpu().numpy() - want).max() / np.abs(want).max()
    # A half-precision sum kept in float32 is rounded once, at the end.
    roundings = 8 if dtype == torch.float32 else 0.6
    assert error < roundings * torch.finfo(dtype).eps


@pytest.mark.parametrize(("num_src", "num_dst"), [(30, 50), (50, 30), (1, 9), (9, 1)])
@pytest.mark.parametrize("k", [3, None])
def test_bipartite_forward_and_backward(implementation, device, num_src, num_dst, k):
    graph = random_graph(num_src, num_dst, 120, weighted=True)
    matrix = dense_matrix(graph, "mean")
    x = torch.randn(num_src, 12, dtype=torch.float64, device=device, requires_grad=True)
    h = x if k is None else maxk.maxk(x, k, implementation=implementation)
    y = maxk.aggregate(graph.to(device), h, "mean", implementation=implementation)
    upstream = torch.randn(num_dst, 12, dtype=torch.float64)
    y.backward(upstream.to(device))
    grad = matrix.T @ upstream.numpy()
    if k is not None:
        mask = scatter(torch.ones_like(h.values).cpu(), h.columns.cpu(), 12).numpy()
        grad = grad * mask
    np.testing.assert_allclose(
        y.detach().cpu().numpy(), matrix @ as_dense(h).detach().cpu().numpy()
    )
    np.testing.assert_allclose(x.grad.cpu().numpy(), grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("k", [2, 5, None])
def test_gradients_of_features_and_weights(implementation, device, reduce, k):
    edges = torch.randint(0, 6, (2, 14), generator=torch.Generator().manual_seed(5))
    x = torch.randn(6, 5, dtype=torch.float64, device=device, requires_grad=True)
    w = (torch.rand(14, dtype=torch.float64, device=device) + 0.5).requires_grad_()

    def f(x, w):
        graph = maxk.Graph.from_edge_index(edges.to(device), 6, w)
        h = x if k is None else maxk.maxk(x, k, implementation=implementation)
        return maxk.aggregate(graph, h, reduce, implementation=implementation)

    assert torch.autograd.gradcheck(f, (x, w))
    assert torch.autograd.gradgradcheck(f, (x, w))


@pytest.mark.parametrize("k", [1, None])
def test_no_edges_no_nodes(implementation, device, k):
    for n in (4, 0):
        graph = maxk.Graph.from_edge_index(torch.empty(2, 0, dtype=torch.int64), n).to(device)
        x = torch.ones(n, 2, device=device, requires_grad=True)
        h = x if k is None else maxk.maxk(x, k, implementation=implementation)
        y = maxk.aggregate(graph, h, "mean", implementation=implementation)
        y.sum().backward()
        assert torch.equal(y, torch.zeros(n, 2, device=device))
        assert torch.equal(x.grad, torch.zeros(n, 2, device=device))


def test_hub_row_is_summed_in_single_precision(implementation, device):
    for leaves in (5000, 70_000):
        graph = star(leaves).to(device)
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            h = maxk.maxk(torch.ones(leaves + 1, 1, dtype=dtype, device=device), 1)
            total = maxk.aggregate(graph, h, "sum", implementation=implementation)[0]
            if leaves == 5000 or dtype == torch.float32:
                assert total.item() == torch.tensor(float(leaves)).to(dtype).item()
            mean = maxk.aggregate(graph, h, "mean", implementation=implementation)[0]
            # 1 / 5000 is no float. The kernels scale the sum; cuSPARSE adds the scaled entries.
            error = leaves * 2**-23 if device.type == "cuda" else 1e-6
            assert mean.item() == pytest.approx(1.0, abs=error)


def test_double_keeps_double(implementation, device):
    h = maxk.maxk(torch.tensor([[0.0], [1.0], [1e-9]], dtype=torch.float64, device=device), 1)
    y = maxk.aggregate(star(2).to(device), h, "sum", implementation=implementation)
    assert y[0].item() == 1.000000001


def test_repeatable_for_any_number_of_threads(monkeypatch):
    graph = random_graph(400, 400, 20_000, weighted=False)
    x = torch.randn(400, 64, generator=torch.Generator().manual_seed(0))

    def run():
        leaf = x.clone().requires_grad_()
        y = maxk.aggregate(graph, maxk.maxk(leaf, 4), "mean")
        y.sin().sum().backward()
        return y.detach(), leaf.grad

    torch.use_deterministic_algorithms(True)
    before = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, before):
            torch.set_num_threads(count)
            results.append(run())
    finally:
        torch.set_num_threads(before)
        torch.use_deterministic_algorithms(False)
    for y, grad in results[1:]:
        assert torch.equal(y, results[0][0])
        assert torch.equal(grad, results[0][1])


def test_both_backward_variants_agree():
    graph = random_graph(60, 60, 900, weighted=True, dtype=torch.float64)
    grads = []
    for deterministic in (False, True):
        torch.use_deterministic_algorithms(deterministic)
        try:
            x = torch.linspace(-1, 1, 60 * 48, dtype=torch.float64).sin().reshape(60, 48)
            x.requires_grad_()
            maxk.aggregate(graph, maxk.maxk(x, 4), "mean").cos().sum().backward()
            grads.append(x.grad)
        finally:
            torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize(("change", "error", "text"), [
    (dict(reduce="max"), ValueError, "reduce must be one of"),
    (dict(features=torch.ones(4, 3)), ValueError, "one row for each of the graph's 3 source nodes"),
    (dict(features=torch.ones(3, 3, dtype=torch.int64)), TypeError, r"call features.float\(\)"),
    (dict(graph="no graph"), TypeError, "must be a maxk.Graph or an edge_index"),
    (dict(edge_weight=torch.ones(2)), ValueError, "edge_weight belongs to a plain edge_index"),
    (dict(implementation="fast"), ValueError, "implementation must be one of"),
    (dict(implementation="cuda"), ValueError, "needs operands on cuda, got cpu"),
])  # fmt: skip
def test_bad_arguments(change, error, text):
    arguments = dict(
        graph=maxk.Graph.from_edge_index(torch.tensor([[0, 1], [1, 2]])),
        features=torch.ones(3, 3), reduce="sum",
    )  # fmt: skip
    with pytest.raises(error, match=text):
        maxk.aggregate(**{**arguments, **change})


def test_gcn_on_a_bipartite_graph_is_refused():
    graph = maxk.Graph.from_edge_index(torch.tensor([[0], [1]]), (1, 2))
    with pytest.raises(ValueError, match="square graph, got 1 source and 2 target"):
        maxk.aggregate(graph, torch.ones(1, 2), "gcn")


def test_mixed_dtypes_are_refused_outside_autocast():
    weight = torch.tensor([0.5, 2.0], requires_grad=True)
    graph = maxk.Graph.from_edge_index(torch.tensor([[0, 1], [2, 2]]), 3, weight)
    x = torch.tensor([[3.0, 1], [2, 4], [0, 0]], dtype=torch.float16, requires_grad=True)
    with pytest.raises(TypeError, match=r"share one dtype, got torch.float16 and torch.float32"):
        maxk.aggregate(graph, maxk.maxk(x, 1), "sum")
    with torch.autocast("cpu", dtype=torch.float16):
        y = maxk.aggregate(graph, maxk.maxk(x, 1), "sum")
    y.float().sum().backward()
    assert y[2].tolist() == [1.5, 8.0]
    assert weight.grad.dtype == torch.float32
    assert weight.grad.tolist() == [3.0, 4.0]


def test_override_and_record():
    graph = maxk.Graph.from_edge_index(torch.tensor([[0, 1], [1, 2]]))
    from maxk.ops.dispatch import choose, record

    with maxk.implementation("reference"):
        assert choose("maxk", torch.device("cpu")).implementation == "reference"
    assert choose("maxk", torch.device("cpu")).implementation == "cpu"
    with record() as recorder:
        maxk.aggregate(graph, maxk.maxk(torch.randn(3, 4), 2), "sum")
    assert set(recorder.seconds) == {"maxk", "spgemm"}
    assert all(seconds > 0 for seconds in recorder.seconds.values())


def test_explain_names_the_variant():
    graph = maxk.Graph.from_edge_index(torch.tensor([[0, 1], [1, 2]]))
    sparse, dense = maxk.maxk(torch.randn(3, 64), 2), maxk.maxk(torch.randn(3, 64), 60)
    assert "rowwise" in str(maxk.explain("spgemm", graph, sparse))
    assert "dense" in str(maxk.explain("spgemm", graph, dense))
    forward, backward = maxk.explain("aggregate", graph, sparse)
    assert (forward.op, backward.op) == ("spgemm", "sspmm")
    with pytest.raises(ValueError, match="op must be one of"):
        maxk.explain("conv", graph, sparse)


def test_gcn_at_a_weighted_degree_of_zero_has_a_finite_gradient():
    weight = torch.zeros(1, requires_grad=True)
    graph = maxk.Graph.from_edge_index(torch.tensor([[0], [1]]), 2, weight)
    y = maxk.aggregate(graph, torch.ones(2, 1), "gcn", fill_self_loops=False)
    y.sum().backward()
    assert y.flatten().tolist() == [0, 0]
    assert weight.grad.tolist() == [0]


@pytest.mark.parametrize("nan", [False, True])
def test_targets_without_a_gradient_add_nothing(implementation, device, nan):
    # Below a loss over training nodes most rows of the gradient are 0 and may be passed over.
    graph = random_graph(300, 300, 9000, weighted=False).to(device)
    x = torch.randn(300, 256, generator=torch.Generator().manual_seed(0)).to(device)
    h = maxk.maxk(x, 32, implementation=implementation)
    values = h.values.detach().requires_grad_()
    y = maxk.aggregate(graph, h.with_values(values), "mean", implementation=implementation)
    upstream = torch.randn(300, 256, generator=torch.Generator().manual_seed(1)).to(device)
    upstream[::3] = 0.0
    upstream[::6] = -0.0
    if nan:
        upstream[0] = 0.0
        upstream[0, 255] = torch.nan
    (got,) = torch.autograd.grad(y, values, upstream)
    sums = torch.zeros(300, 256, dtype=torch.float64, device=device)
    source, target = graph.edge_index()
    scaled = upstream.double() / graph.in_degrees().clamp(min=1)[:, None]
    sums.index_add_(0, source, scaled[target])
    want = sums.gather(1, h.columns.long())
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5, equal_nan=True)
