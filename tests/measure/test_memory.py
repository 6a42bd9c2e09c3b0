from __future__ import annotations

import pytest
import torch

from maxk.measure.memory import added_memory, free_memory, peak_memory


def test_memory_that_was_freed_does_not_count_twice() -> None:
    def call() -> None:
        for _ in range(5):
            first = torch.ones(1000)
            del first

    assert added_memory(call, "cpu") == 4000


def test_views_and_older_tensors_are_not_new_memory() -> None:
    old = torch.ones(1000)
    assert added_memory(lambda: old.view(10, 100).add_(1).t(), "cpu") == 0


def test_what_backward_takes_is_seen() -> None:
    x = torch.ones(1000, requires_grad=True)
    # The product's result, its sum, and in backward a gradient of ones and that of x.
    assert added_memory(lambda: (x * x).sum().backward(), "cpu") >= 8000
    assert x.grad is not None


def test_free_memory_of_the_system_is_known() -> None:
    free = free_memory("cpu")
    assert free is None or free > 1 << 20


@pytest.mark.gpu
def test_on_a_gpu_the_allocator_counts() -> None:
    assert added_memory(lambda: torch.ones(1 << 20, device="cuda"), "cuda") == 1 << 22
    assert 0 < (free_memory("cuda") or 0) <= torch.cuda.get_device_properties(0).total_memory
    assert peak_memory("cuda") >= 1 << 22
