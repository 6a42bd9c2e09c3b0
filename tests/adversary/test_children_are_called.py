"""A child of a layer is a module: hooks fire, parametrisations apply, kept outputs stay."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import maxk
from maxk.nn.children import is_plain

pyg = pytest.importorskip("torch_geometric.nn")

EDGES = torch.tensor([[0, 1, 2, 3, 1, 0], [1, 2, 0, 0, 3, 2]])
N, WIDTH, OUT = 4, 6, 3
HOOKS = {
    "forward": "register_forward_hook",
    "forward-pre": "register_forward_pre_hook",
    "backward": "register_full_backward_hook",
    "backward-pre": "register_full_backward_pre_hook",
}


def features(grad=True):
    torch.manual_seed(3)
    return torch.randn(N, WIDTH, dtype=torch.float64, requires_grad=grad)


def pair(name, *arguments, **settings):
    """PyG's layer and ours with the same weights."""
    torch.manual_seed(0)
    theirs = getattr(pyg, name)(*arguments, **settings).double()
    ours = getattr(maxk.nn, name)(*copy.deepcopy(arguments), **settings).double()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def run(conv, compressed):
    """The result and all gradients of a layer."""
    x = features()
    h = maxk.maxk(x, 2)
    if not compressed or not type(conv).__module__.startswith("maxk"):
        h = h.to_dense()
    y = conv(h, EDGES)
    y.sin().sum().backward()
    return [y, x.grad, *(p.grad for p in conv.parameters())]


def same(ours, theirs, compressed):
    for got, want in zip(run(ours, compressed), run(theirs, compressed), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(("name", "child"), [
    ("SAGEConv", "lin_l"), ("SAGEConv", "lin_r"), ("SAGEConv", "lin"), ("GCNConv", "lin"),
])  # fmt: skip
def test_a_hook_on_a_linear_layer_fires_and_sees_what_pyg_shows(name, child, hook, compressed):
    settings = {"project": True} if child == "lin" and name == "SAGEConv" else {}
    layers = pair(name, WIDTH, OUT, **settings)
    kept = [[], []]

    def tensors(value):
        if isinstance(value, torch.Tensor):
            return [value]
        return [t for part in value for t in tensors(part)] if isinstance(value, tuple) else []

    for layer, seen in zip(layers, kept, strict=True):
        inner = layer.get_submodule(child)
        # GCNConv multiplies compressed features after the aggregation: fewer values are the same.
        skip = name == "GCNConv" and compressed
        getattr(inner, HOOKS[hook])(
            lambda module, *given, seen=seen, skip=skip: seen.append(
                [] if skip else [t for value in given for t in tensors(value)]
            )
        )
    same(*layers, compressed)
    assert len(kept[0]) == len(kept[1]) == 1
    for got, want in zip(*(seen[0] for seen in kept), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_hook_on_all_modules_fires(compressed):
    ours, _ = pair("SAGEConv", WIDTH, OUT)
    x = features(grad=False)
    called = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: called.append((module, output, output.clone()))
    )
    try:
        ours(maxk.maxk(x, 2) if compressed else x, EDGES)
    finally:
        handle.remove()
    assert [module for module, _, _ in called] == [ours.lin_l, ours.lin_r, ours]
    assert all(torch.equal(output, then) for _, output, then in called)


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


class Wrapped(nn.Module):
    """What a sharding wrapper looks like from outside: a call, and no weight of its own."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)

    def __getattr__(self, name):
        if name == "weight":
            raise AssertionError("the weight is sharded and must not be read")
        return super().__getattr__(name)


class Adapted(nn.Linear):
    """A low-rank adapter next to the weight."""

    def __init__(self, inner):
        super().__init__(inner.weight.shape[1], inner.weight.shape[0], bias=inner.bias is not None)
        self.load_state_dict(inner.state_dict())
        torch.manual_seed(5)
        self.down = nn.Parameter(torch.randn(1, self.in_features))
        self.up = nn.Parameter(torch.randn(self.out_features, 1))
        self.double()

    def forward(self, x):
        return super().forward(x) + x @ self.down.t() @ self.up.t()


def seeded(change):
    """The same random change on both sides."""

    def apply(layer, child):
        torch.manual_seed(7)
        change(layer, child)

    return apply


def replace(kind):
    return lambda layer, child: layer.set_submodule(child, kind(layer.get_submodule(child)))


def on(function, *arguments, **settings):
    return lambda layer, child: function(layer.get_submodule(child), *arguments, **settings)


def patched(layer, child):
    inner = layer.get_submodule(child)
    inner.forward = lambda x: nn.functional.linear(x, 3 * inner.weight, inner.bias)


CHANGES = {
    "prune": on(prune.l1_unstructured, name="weight", amount=0.5),
    "weight_norm": on(nn.utils.weight_norm),
    "spectral_norm": on(nn.utils.spectral_norm),
    "parametrized weight_norm": on(parametrizations.weight_norm),
    "parametrized spectral_norm": on(parametrizations.spectral_norm),
    "parametrize": on(
        lambda inner: parametrize.register_parametrization(inner, "weight", Doubled())
    ),
    "wrapper": replace(Wrapped),
    "adapter": replace(Adapted),
    "patched forward": patched,
    "frozen": on(lambda inner: inner.requires_grad_(False)),
}  # fmt: skip


def three_steps(layer, compressed):
    parameters = [p for p in layer.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    results = []
    for _ in range(3):
        optimizer.zero_grad()
        results.append(run(layer, compressed)[0])
        optimizer.step()
    return [*results, *parameters]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("child", ["lin_l", "lin_r"])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
def test_three_steps_with_a_changed_child_equal_pyg(child, change, compressed):
    layers = pair("SAGEConv", WIDTH, OUT)
    for layer in layers:
        seeded(CHANGES[change])(layer, child)
    got, want = (three_steps(layer, compressed) for layer in layers)
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def network_on(x, change, *, by_hand=False):
    """Three training steps of a network whose first layer is changed; last logits, calls seen."""
    torch.manual_seed(0)
    model = maxk.nn.GCN(WIDTH, 8, 1, OUT, k=2, norm=None).double()
    called = []
    if change in HOOKS:
        getattr(model.lin_in, HOOKS[change])(lambda *given: called.append(change))
    else:
        seeded(CHANGES[change])(model, "lin_in")
    parameters = list(model.parameters())
    first = nn.Identity()
    if by_hand:
        first, model.lin_in = model.lin_in, first
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    graph = maxk.Graph.from_edge_index(EDGES, N)
    for _ in range(3):
        optimizer.zero_grad()
        y = model(first(x), graph)
        y.sin().sum().backward()
        optimizer.step()
    return y, called


@pytest.mark.parametrize("change", [*CHANGES, *HOOKS])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated", "ignore:Full backward hook")
def test_the_first_layer_of_a_network_is_called(change):
    x = features(grad=False).relu()
    want, calls = network_on(x, change, by_hand=True)
    for given in (x, x.to_sparse_csr()):
        got, called = network_on(given, change)
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
        assert called == calls == [change] * 3 * (change in HOOKS)


@pytest.mark.parametrize("network", ["GraphSAGE", "GCN", "GIN"])
@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_on_every_module_of_a_network_fire(network, hook):
    model = getattr(maxk.nn, network)(WIDTH, 8, 2, OUT, k=2)
    graph = maxk.Graph.from_edge_index(EDGES, N)
    called = set()
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | maxk.nn.nonlinearities.Activation):
            getattr(module, HOOKS[hook])(lambda *given, name=name: called.add(name))
    model(features().float(), graph).sum().backward()
    wanted = {
        name for name, module in model.named_modules()
        if not isinstance(module, nn.ModuleList | maxk.nn.nonlinearities.Activation)
    }  # fmt: skip
    assert called == wanted


@pytest.mark.parametrize("change", ["pruned", "hooked", "patched"])
def test_a_changed_norm_is_called_before_maxk(change):
    torch.manual_seed(0)
    norm = nn.LayerNorm(8)
    x = torch.randn(5, 8)
    if change == "pruned":
        prune.l1_unstructured(norm, "weight", 0.5)
    elif change == "hooked":
        norm.register_forward_hook(lambda module, inputs, output: 2 * output)
    else:
        norm.forward = lambda rows: rows - 1
    got = maxk.nn.nonlinearities.Activation("maxk", 8, 3)(x, norm)
    assert torch.equal(got.to_dense(), maxk.maxk(norm(x), 3).to_dense())


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("change", ["prune", "parametrize", "adapter", "wrapper", *HOOKS])
def test_the_layers_in_the_order_of_dgl_call_their_children(change, compressed):
    torch.manual_seed(0)
    conv = maxk.interop.dgl.SAGEConv(WIDTH, OUT, "mean").double()
    graph = maxk.Graph.from_edge_index(EDGES, N)
    called = []
    if change in HOOKS:
        for child in conv.children():
            getattr(child, HOOKS[change])(lambda *given: called.append(change))
    else:
        seeded(CHANGES[change])(conv, "fc_self")
    x = features()
    h = maxk.maxk(x, 2)
    dense = h.to_dense()
    y = conv(graph, h if compressed else dense)
    y.sum().backward()
    assert called == [change] * 2 * (change in HOOKS)
    mean = maxk.aggregate(graph, dense, "mean")
    torch.testing.assert_close(y, conv.fc_neigh(mean) + conv.fc_self(dense))


@pytest.mark.parametrize("change", [*CHANGES, *HOOKS])
@pytest.mark.parametrize("child", ["lin_l", "lin_r"])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
def test_a_converted_layer_keeps_what_hangs_on_its_children(child, change):
    called = []
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        model = pyg.models.GraphSAGE(WIDTH, 8, 2, OUT).double()
        for conv in model.convs:
            if change in HOOKS:
                inner = conv.get_submodule(child)
                getattr(inner, HOOKS[change])(lambda *given: called.append(change))
            else:
                seeded(CHANGES[change])(conv, child)
        made.append(model)
    ours, theirs = made
    for i, conv in enumerate(ours.convs):
        ours.convs[i] = maxk.interop.layers.replacement(conv, f"convs.{i}")
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    got, want = three_steps(ours, True), three_steps(theirs, True)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert len(called) == 2 * 2 * 3 * (change in HOOKS)


@pytest.mark.parametrize("part", ["act", "dropout", "convs.0", "convs.0.aggr_module"])
def test_a_hook_that_a_conversion_would_lose_is_refused(part):
    model = pyg.models.GraphSAGE(WIDTH, 8, 2, OUT)
    model.get_submodule(part).register_forward_hook(lambda *given: None)
    with pytest.raises(ValueError, match=r"has hooks.*remove them"):
        maxk.convert(model, k=2)


def test_a_hook_on_an_activation_of_a_written_model_is_refused():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = pyg.SAGEConv(WIDTH, 8), pyg.SAGEConv(8, OUT)
            self.act, self.drop = nn.ReLU(), nn.Dropout(0.5)

        def forward(self, x, edge_index):
            return self.conv2(self.drop(self.act(self.conv1(x, edge_index))), edge_index)

    for part in ("act", "drop"):
        model = Net()
        model.get_submodule(part).register_forward_hook(lambda *given: None)
        with pytest.raises(ValueError, match=rf"{part} .*has hooks.*remove them"):
            maxk.convert(model, k=2)


def test_what_a_hook_keeps_is_not_written_to():
    for compressed in (False, True):
        ours, _ = pair("SAGEConv", WIDTH, OUT)
        kept = []
        ours.lin_l.register_forward_hook(
            lambda module, inputs, output, kept=kept: kept.append((output, output.clone()))
        )
        run(ours, compressed)
        assert torch.equal(*kept[0])


def test_a_plain_layer_is_one_that_nothing_hangs_on():
    assert is_plain(nn.Linear(2, 2), nn.Linear)
    assert is_plain(nn.Linear(2, 2, bias=False), nn.Linear)
    assert not is_plain(nn.Linear(2, 2), nn.LayerNorm)
    assert not is_plain(nn.LayerNorm(2, elementwise_affine=False), nn.LayerNorm)
    compiled = nn.Linear(2, 2)
    compiled.compile()
    assert not is_plain(compiled, nn.Linear)
    assert not is_plain(nn.LazyLinear(2), nn.Linear)
