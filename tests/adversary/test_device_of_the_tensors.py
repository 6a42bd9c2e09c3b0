"""A kernel launched on the current device in place of its tensors' device."""

from __future__ import annotations

import pytest
import torch

import maxk
from adversary.tiny import graph_of, leaf, same
from maxk.core.errors import DeviceError
from maxk.train.setup import resolve_device


@pytest.mark.multigpu
def test_the_second_gpu_is_used_while_the_first_is_current():
    with torch.cuda.device(0):
        graph = graph_of([(0, 1), (1, 2)], 3, device="cuda:1")
        x = leaf([[1], [10], [100]], "cuda:1")
        y = maxk.aggregate(graph, maxk.maxk(x, 1), "sum")
        y.backward(torch.tensor([[5.0], [7], [11]], device="cuda:1"))
        assert y.device == torch.device("cuda:1")
        same(y, [[0], [1], [10]])
        same(x.grad, [[7], [11], [0]])
        with pytest.raises(ValueError, match="got cuda:0 and cuda:1"):
            maxk.aggregate(graph, torch.ones(3, 1, device="cuda:0"), "sum")


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="the device asked for exists")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(DeviceError, match=r"--device cuda:1 "):
        resolve_device("cuda:1")
