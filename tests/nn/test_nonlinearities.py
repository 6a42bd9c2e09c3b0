from __future__ import annotations

from typing import get_args

import pytest
import torch

import maxk
from graphs import random_graph
from maxk.nn.nonlinearities import (
    NONLINEARITIES,
    REGULAR,
    Activation,
    dropout_relu,
    fatrelu,
    maxk_grouped,
)
from maxk.train.config import TrainConfig, field_types


def test_flag_and_model_know_the_same_names():
    assert set(get_args(field_types()["nonlinearity"])) == set(NONLINEARITIES)


@pytest.mark.parametrize(("k", "groups"), [(4, 1), (4, 2), (4, 4), (12, 4), (300, 100)])
def test_grouped_maxk_is_maxk_inside_each_block(k, groups):
    width = 300 if k == 300 else 12
    x = torch.randn(7, width, dtype=torch.float64, requires_grad=True)
    features = maxk_grouped(x, k, groups).validate()
    blocks = [
        maxk.maxk(block.contiguous(), k // groups).to_dense() for block in x.chunk(groups, dim=1)
    ]
    want = torch.cat(blocks, dim=1)
    assert torch.equal(features.to_dense(), want)
    weight = torch.randn_like(want)
    (got,) = torch.autograd.grad((features.to_dense() * weight).sum(), x)
    (expected,) = torch.autograd.grad((want * weight).sum(), x)
    assert torch.equal(got, expected)
    assert maxk_grouped(x[:0], k, groups).values.shape == (0, k)


def test_fatrelu_keeps_as_many_of_the_whole_matrix():
    torch.manual_seed(0)
    x = torch.randn(50, 16, requires_grad=True)
    y = fatrelu(x, 3)
    kept = y != 0
    assert int(kept.sum()) == 150
    assert bool((x[kept] > x[~kept].max()).all())
    assert torch.equal(y[kept], x[kept])
    y.sum().backward()
    assert torch.equal(x.grad, kept.float())
    # A row may keep more or fewer: that is what sets it apart from MaxK.
    assert len(set(kept.sum(1).tolist())) > 1


def test_fatrelu_never_lets_a_negative_pass():
    x = torch.tensor([[-1.0, -2.0, 3.0, -4.0]])
    assert fatrelu(x, 3).tolist() == [[0, 0, 3, 0]]
    assert torch.equal(fatrelu(x, 4), x.relu())
    assert fatrelu(torch.tensor([[0.5, 2.0]]), 1, threshold=0.5).tolist() == [[0, 2]]
    assert fatrelu(x[:0], 3).shape == (0, 4)


def test_dropout_relu_keeps_a_share_and_its_mean():
    torch.manual_seed(0)
    x = torch.ones(400, 64)
    y = dropout_relu(x, 16, training=True)
    assert set(y.unique().tolist()) == {0.0, 4.0}
    assert abs(float(y.mean()) - 1) < 0.05
    assert torch.equal(dropout_relu(-x, 16, training=True), torch.zeros_like(x))
    assert torch.equal(dropout_relu(x, 16, training=False), x)


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize("network", ["GraphSAGE", "GCN", "GIN"])
def test_every_model_takes_every_nonlinearity(network, nonlinearity):
    torch.manual_seed(0)
    graph = random_graph(20, 20, 60, weighted=False)
    x = torch.randn(20, 5)
    model = getattr(maxk.nn, network)(5, 16, 2, 3, k=4, nonlinearity=nonlinearity, groups=2)
    seen = []
    model.activation.register_forward_hook(lambda module, inputs, output: seen.append(output))
    model(x, graph).sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
    assert [isinstance(h, maxk.CBSR) for h in seen] == [nonlinearity in REGULAR] * 2
    relu = getattr(maxk.nn, network)(5, 16, 2, 3, nonlinearity="relu")
    assert relu.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize(("settings", "message"), [
    (dict(nonlinearity="gelu"), "nonlinearity must be 'maxk', 'relu', .* got 'gelu'"),
    (dict(nonlinearity="fatrelu", k=17), r"k must lie in \[1, 16\]"),
    (dict(nonlinearity="maxk-grouped", groups=3), "groups must divide k=4 and the width D=16"),
    (dict(nonlinearity="fatrelu", threshold=-1.0), "threshold must be at least 0"),
])  # fmt: skip
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        Activation(**{"nonlinearity": "maxk", "width": 16, "k": 4, **settings})


@pytest.mark.parametrize(("settings", "message"), [
    (dict(nonlinearity="maxk-grouped", k=6, hidden=16, groups=4), "the largest that does is 2"),
    (dict(nonlinearity="dropout-relu", k=20, hidden=16), r"--k must lie in \[1, 16\]"),
    (dict(threshold=-1.0), "--threshold must be at least 0"),
    (dict(groups=0), "--groups must be at least 1"),
])  # fmt: skip
def test_wrong_flags_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**settings)


@pytest.mark.parametrize("register", [
    "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
    "register_full_backward_pre_hook",
])  # fmt: skip
def test_a_norm_with_a_hook_is_called_for_it(register: str) -> None:
    called = []
    norm = torch.nn.LayerNorm(8)
    getattr(norm, register)(lambda *arguments: called.append(register))
    features = Activation("maxk", 8, 2)(torch.randn(3, 8, requires_grad=True), norm)
    features.values.sum().backward()
    assert called == [register]
