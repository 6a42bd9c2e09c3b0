"""A CBSR that is a view of a larger one is copied and saved without the rest of it."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import maxk
from maxk.cbsr import CBSR


def one_row(values: torch.Tensor | None = None) -> CBSR:
    whole = maxk.maxk(torch.randn(10_000, 128), 64)
    rows = whole.values[:1] if values is None else values
    return CBSR(rows, whole.columns[:1], 128)


def saved_by_torch(h: CBSR) -> bytes:
    buffer = io.BytesIO()
    torch.save(h, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("save", [pickle.dumps, saved_by_torch], ids=["pickle", "torch.save"])
def test_a_row_saves_as_a_row(save: Callable[[Any], bytes]) -> None:
    h = one_row()
    data = save(h)
    assert len(data) < 10_000
    if save is pickle.dumps:
        back = pickle.loads(data)
    else:
        back = torch.load(io.BytesIO(data), weights_only=False)
    assert torch.equal(back.to_dense(), h.to_dense())
    assert back.width == 128


def test_a_row_is_copied_as_a_row() -> None:
    h = one_row()
    copied = copy.deepcopy(h)
    assert torch.equal(copied.to_dense(), h.to_dense())
    assert copied.values.untyped_storage().nbytes() == h.values.nbytes
    assert copied.columns.untyped_storage().nbytes() == h.columns.nbytes
    copied.values.zero_()
    assert bool(h.values.any())


def test_a_shallow_copy_shares_its_tensors() -> None:
    h = one_row()
    copied = copy.copy(h)
    assert copied is not h
    assert copied.values is h.values
    assert copied.columns is h.columns


@pytest.mark.parametrize("view", [False, True])
def test_gradients_of_copies_are_those_of_tensors(view: bool) -> None:
    storage = torch.randn(10 if view else 1, 64)
    leaf = storage[:1].requires_grad_()
    copied = copy.deepcopy(one_row(leaf))
    assert copied.values.is_leaf
    assert copied.values.requires_grad
    inner = one_row(leaf * 1)
    with pytest.raises(RuntimeError) as ours:
        copy.deepcopy(inner)
    with pytest.raises(RuntimeError) as torchs:
        copy.deepcopy(inner.values)
    assert str(ours.value) == str(torchs.value)


def test_two_copies_of_one_tensor_stay_one() -> None:
    h = one_row()
    pair = copy.deepcopy([h, h.with_values(h.values)])
    assert pair[0].values is pair[1].values
    assert pair[0].columns is pair[1].columns
