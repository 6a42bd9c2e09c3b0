"""Every public layer under what PyTorch does to modules, against PyG's layer under the same.

The models are compared with the PyTorch and PyG network of the same weights.
"""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import maxk

pyg = pytest.importorskip("torch_geometric.nn")

N, WIDTH, OUT = 12, 6, 4
EDGES = torch.stack([torch.arange(40) % N, (torch.arange(40) * 7 + 3) % N])


def mlp():
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, OUT))


LAYERS = {
    "SAGEConv": lambda m: m.SAGEConv(WIDTH, OUT),
    "SAGEConv sum normalize": lambda m: m.SAGEConv(WIDTH, OUT, "sum", True),
    "SAGEConv project": lambda m: m.SAGEConv(WIDTH, OUT, project=True, bias=False),
    "SAGEConv without root": lambda m: m.SAGEConv(WIDTH, OUT, root_weight=False),
    "GCNConv": lambda m: m.GCNConv(WIDTH, OUT),
    "GCNConv plain": lambda m: m.GCNConv(WIDTH, OUT, normalize=False, bias=False),
    "GCNConv cached": lambda m: m.GCNConv(WIDTH, OUT, cached=True),
    "GINConv": lambda m: m.GINConv(mlp(), eps=0.3),
    "GINConv train_eps": lambda m: m.GINConv(nn.Linear(WIDTH, OUT), train_eps=True),
}  # fmt: skip
MODELS = ["GraphSAGE", "GCN", "GIN"]


class OnEdges(nn.Module):
    """A model of ours, called with an edge list as the exported network is."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, edge_index):
        return self.model(x, maxk.Graph.from_edge_index(edge_index, x.shape[0]))


def pair(name):
    """Our module and PyG's with the same weights."""
    torch.manual_seed(0)
    if name in MODELS:
        model = getattr(maxk.nn, name)(WIDTH, 8, 2, OUT, k=3)
        return OnEdges(model), maxk.interop.to_pyg_model(model)
    ours, theirs = LAYERS[name](maxk.nn), LAYERS[name](pyg)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def features(dtype=torch.float64):
    return torch.linspace(-2, 3, N * WIDTH, dtype=dtype).sin().reshape(N, WIDTH)


def numbers(module, dtype=torch.float64, call=None):
    """The result of a module and all gradients."""
    x = features(dtype).requires_grad_()
    y = (call or module)(x, EDGES)
    module.zero_grad()
    y.float().sin().sum().backward() if dtype != torch.float64 else y.sin().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in module.parameters() if p.grad is not None)]


def close(got, want, rtol=1e-6, atol=1e-8):
    for ours, theirs in zip(got, want, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


def children(module):
    return [child for child in module.modules() if isinstance(child, nn.Linear | pyg.Linear)]


def plain(module):
    return numbers(module)


def hooks(module):
    seen = []
    module.register_forward_pre_hook(lambda m, inputs: (2 * inputs[0], *inputs[1:]))
    module.register_forward_hook(lambda m, inputs, output: output - 1)
    module.register_full_backward_hook(
        lambda m, grads, outs: seen.extend(g.clone() for g in (*grads, *outs) if g is not None)
    )
    return [*numbers(module), *seen]


def hooks_inside(module):
    seen = [[] for _ in children(module)]
    for child, grads in zip(children(module), seen, strict=True):
        child.register_forward_hook(lambda m, inputs, output: 1.5 * output)
        child.register_full_backward_hook(
            lambda m, given, outs, grads=grads: grads.extend(g.clone() for g in outs)
        )
    return [*numbers(module), *(g for grads in seen for g in grads)]


def parametrised(module):
    for child in children(module):
        parametrizations.weight_norm(child)
    return numbers(module)


def float32(module):
    return numbers(module.float(), torch.float32)


def deepcopied(module):
    module(features(), EDGES)
    return numbers(copy.deepcopy(module))


def pickled(module):
    module(features(), EDGES)
    return numbers(pickle.loads(pickle.dumps(module)))


def functional(module):
    weights = {name: (2 * p).detach() for name, p in module.named_parameters()}
    for weight in weights.values():
        weight.requires_grad_()
    x = features().requires_grad_()
    y = torch.func.functional_call(module, weights, (x, EDGES))
    return [y, *torch.autograd.grad(y.sin().sum(), [x, *weights.values()])]


def made_on_meta(module):
    empty = copy.deepcopy(module).to("meta").to_empty(device="cpu")
    empty.load_state_dict(module.state_dict())
    for name, buffer in module.named_buffers():
        empty.get_buffer(name).copy_(buffer)
    return numbers(empty)


def default_dtype(module):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return numbers(module.float(), torch.float32)
    finally:
        torch.set_default_dtype(before)


def two_threads(module):
    results, errors = {}, []

    def work(number):
        try:
            for _ in range(3):
                x = (features() * (number + 1)).requires_grad_()
                y = module(x, EDGES)
                (grad,) = torch.autograd.grad(y.sin().sum(), x)
            results[number] = [y.detach(), grad]
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    return results[0] + results[1]


TREATMENTS = [
    plain, hooks, hooks_inside, parametrised, deepcopied, pickled, functional, made_on_meta,
    two_threads,
]  # fmt: skip


@pytest.mark.parametrize("treatment", TREATMENTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", [*LAYERS, *MODELS])
def test_the_same_as_pyg_in_float64(name, treatment):
    ours, theirs = (module.double() for module in pair(name))
    close(treatment(ours), treatment(theirs))


@pytest.mark.parametrize("edges_too", [False, True])
@pytest.mark.parametrize("name", [*LAYERS, *MODELS])
def test_training_after_inference_mode_is_training(name, edges_too):
    """PyG keeps an inference tensor in a cache and in what it saves; ours keeps its own copies."""
    ours, theirs = (module.double() for module in pair(name))
    edges = EDGES.clone()
    with torch.inference_mode():
        if edges_too:
            edges = EDGES.clone()
        first = ours.eval()(features(), edges)
    want = numbers(theirs)
    close([first.clone()], want[:1])
    close(numbers(ours.train(), call=lambda x, _: ours(x, edges)), want)


@pytest.mark.parametrize("treatment", [float32, default_dtype], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", [*LAYERS, *MODELS])
def test_the_same_as_pyg_in_float32(name, treatment):
    ours, theirs = pair(name)
    close(treatment(ours), treatment(theirs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_autocast_as_pyg(name):
    """Under autocast to bfloat16 results and gradients agree to its 8 bits."""
    got, want = [], []
    for module, results in zip(pair(name), (got, want), strict=True):
        x = features(torch.float32).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = module(x, EDGES)
        y.float().sin().sum().backward()
        results += [y.float(), x.grad, *(p.grad for p in module.parameters())]
    for ours, theirs in zip(got, want, strict=True):
        scale = theirs.abs().max().item()
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.03 * scale)


def result_of(module):
    return module(features(), EDGES).detach().tolist()


def other_process(method, modules, function=result_of):
    context = torch.multiprocessing.get_context(method)
    with context.Pool(1) as pool:
        return pool.map_async(function, modules).get(timeout=120)


def result_under_another_default_device(module):
    x = features().requires_grad_()
    torch.set_default_device("meta")
    y = module(x, EDGES)
    y.sin().sum().backward()
    module.zero_grad()
    y = module(x, EDGES)
    torch.set_default_device(None)
    return [y.detach().tolist(), x.grad.tolist()]


def test_tensors_follow_their_inputs_and_not_the_default_device():
    # In a process of its own: the test suite replaces torch.empty, which hides the default device.
    pairs = [[module.double() for module in pair(name)] for name in [*LAYERS, *MODELS]]
    modules = [ours for ours, _ in pairs]
    got = other_process("spawn", modules, result_under_another_default_device)
    for ours, (_, theirs) in zip(got, pairs, strict=True):
        results = [torch.tensor(values, dtype=torch.float64) for values in ours]
        close(results, numbers(theirs)[:2])


def test_a_spawned_process_computes_what_pyg_computes():
    pairs = [[module.double() for module in pair(name)] for name in [*LAYERS, *MODELS]]
    got = other_process("spawn", [ours for ours, _ in pairs])
    for ours, (_, theirs) in zip(got, pairs, strict=True):
        want = theirs(features(), EDGES).detach()
        torch.testing.assert_close(torch.tensor(ours, dtype=torch.float64), want)


def test_a_forked_process_computes_what_pyg_computes():
    pairs = [[module.double() for module in pair(name)] for name in [*LAYERS, *MODELS]]
    for ours, _ in pairs:
        ours(features(), EDGES)  # the parent has run kernels before it forks
    got = other_process("fork", [ours for ours, _ in pairs])
    for ours, (_, theirs) in zip(got, pairs, strict=True):
        want = theirs(features(), EDGES).detach()
        torch.testing.assert_close(torch.tensor(ours, dtype=torch.float64), want)
