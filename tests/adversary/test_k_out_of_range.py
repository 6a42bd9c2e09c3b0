"""A k outside the row: a vague message, or none."""

from __future__ import annotations

import pytest
import torch

import maxk
from adversary.tiny import dtypes, leaf, same
from maxk.cli.main import main


@dtypes
def test_k_equal_to_the_width_is_the_identity(implementation, device, dtype):
    x = leaf([[4, -1, 0, 2], [0, 0, 0, -3]], device, dtype)
    y = maxk.maxk(x, 4, implementation=implementation).to_dense()
    y.sum().backward()
    assert torch.equal(y, x)
    same(x.grad, [[1] * 4] * 2)


@pytest.mark.parametrize("call", [
    maxk.maxk, maxk.CBSR.from_dense, lambda x, k: maxk.nn.MaxK(k)(x),
    lambda x, k: maxk.nn.GraphSAGE(4, x.shape[1], 1, 2, k=k),
], ids=["maxk", "from_dense", "MaxK", "GraphSAGE"])  # fmt: skip
@pytest.mark.parametrize("k", [5, 0, -1, 2.5, True])
def test_k_out_of_range_is_named_with_the_width(call, k):
    error, text = (ValueError, r"k must lie in \[1, \d+\].*got k=") if type(k) is int else (
        TypeError, "k must be an int in .*got "
    )  # fmt: skip
    with pytest.raises(error, match=f"{text}{k}"):
        call(torch.ones(2, 4), k)


@pytest.mark.parametrize("k", ["0", "65", "2.5"])
def test_k_is_refused_before_data_are_loaded(capsys, k):
    # The data set does not exist: it is k that is named.
    assert main(["train", "--dataset", "nowhere.npz", "--hidden", "64", "--k", k]) == 2
    told = capsys.readouterr().err
    assert told.startswith("maxk: --k must ")
    assert k in told
    assert "nowhere" not in told
