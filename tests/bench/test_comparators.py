from __future__ import annotations

import importlib.util

import pytest
import torch

from maxk.bench.kernels import ceiling
from maxk.bench.kernels.comparators import comparators, merge_path, neighbor_groups
from maxk.bench.kernels.problem import Problem
from maxk.cbsr import CBSR
from maxk.device.kernel import build
from maxk.graph.graph import Graph
from maxk.measure.traffic import Size
from maxk.ops.maxk.reference import scatter
from maxk.ops.spmm.reference import spmm, spmm_t

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
BY_NAME = {comparator.name: comparator for comparator in comparators()}


def problem(device: str) -> Problem:
    """A hub, isolated nodes and a width that fills no warp."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    source = torch.cat([torch.arange(300), torch.randint(50, (200,))])
    target = torch.cat([torch.zeros(300, dtype=torch.long), torch.randint(350, (200,))])
    graph = Graph.from_edge_index(torch.stack([source, target]), num_nodes=400).to(device)
    x = torch.randn(400, 40, device=device)
    return Problem(graph, "mean", x, torch.randn_like(x), CBSR.from_dense(x, 5))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", list(BY_NAME))
def test_every_comparator_computes_what_it_says(name: str, device: str) -> None:
    comparator, given = BY_NAME[name], problem(device)
    for op in comparator.ops:
        reason = comparator.absent(given, op)
        if reason is not None:
            assert reason == "it is a CUDA kernel" and device == "cpu"
            continue
        out = comparator.prepare(given, op)()
        if op == "maxk":
            values, columns = out  # type: ignore[misc]
            torch.testing.assert_close(scatter(values, columns, 40), given.features.to_dense())
            continue
        assert isinstance(out, torch.Tensor)
        x = given.x.relu() if comparator.operand == "relu" else given.x
        if op == "forward":
            expected = spmm(given.adjacency, None, x)
        else:
            expected = spmm_t(given.adjacency, None, given.grad)
        torch.testing.assert_close(out.to_dense() if out.is_sparse_csr else out, expected)


def test_names_are_those_that_rows_carry() -> None:
    assert list(BY_NAME) == [
        "torch.sparse", "best-dense", "neighbor-groups", "merge-path", "relu-spgemm", "torch.topk",
    ]  # fmt: skip


def test_groups_cut_rows_and_skip_empty_ones() -> None:
    owner, start = neighbor_groups.groups(torch.tensor([0, 5, 5, 6, 10]), 2)
    assert owner.tolist() == [0, 0, 0, 2, 3, 3]
    assert start.tolist() == [0, 2, 4, 5, 6, 8]


def test_sizes_reach_the_traffic() -> None:
    assert problem("cpu").size == Size(400, 400, 500, 40, 5, 4, weighted=False)


@pytest.mark.skipif(
    importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None,
    reason="needs cuda-bindings",
)
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 0)])
def test_kernels_compile_without_spills(capability: tuple[int, int]) -> None:
    for width in (1, 40, 256, 1024):
        for spec in (
            neighbor_groups.spec(width),
            merge_path.spec(width),
            ceiling.spec("gather", width),
            ceiling.spec("reduce", width),
        ):
            assert build(spec, capability).resources(spec.entry).spill_bytes == 0, spec
