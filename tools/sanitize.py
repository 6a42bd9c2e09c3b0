"""Every CUDA kernel once on its smallest cases, for compute-sanitizer.

for tool in memcheck racecheck initcheck synccheck; do
    PYTHONPATH=src compute-sanitizer --tool $tool --report-api-errors no python3 tools/sanitize.py
done
"""

from __future__ import annotations

import torch

from maxk.graph.adjacency import Adjacency
from maxk.graph.csr import from_edges
from maxk.ops.maxk import cuda as maxk
from maxk.ops.spgemm import cuda as spgemm
from maxk.ops.spmm import cuda as spmm
from maxk.ops.sspmm import cuda as sspmm
from maxk.ops.sspmm.plan_cuda import CudaPlan

NODES, HUB_EDGES = 40, 1100  # the hub's row is longer than two pieces of work
SHAPES = [(256, 32), (33, 7), (256, 8), (4097, 16)]


def small_graph() -> Adjacency:
    """Random edges, and one row that is cut into pieces."""
    hub = torch.stack([torch.randint(NODES, (HUB_EDGES,)), torch.zeros(HUB_EDGES).long()])
    edges = torch.cat([torch.randint(NODES, (2, 300)), hub], dim=1).cuda()
    scales = torch.rand(2, NODES, device="cuda")
    return Adjacency(from_edges(edges, NODES, NODES, keep_order=False), scales[0], scales[1])


def backward_plans(k: int) -> list[CudaPlan]:
    """Scatter whole and in panels, and the repeatable gather."""
    vector = 4 if k % 4 == 0 else 1
    scatter = [CudaPlan("scatter", "", vector, 2, 2, True, 20, panels) for panels in (1, 2)]
    return [*scatter, CudaPlan("gather", "", vector, 2, 2, False, 20, 1)]


def run(adjacency: Adjacency, width: int, k: int) -> None:
    """All kernels for one feature shape."""
    x, grad = torch.randn(2, NODES, width, device="cuda")
    x[3] = 1.0  # a row of ties
    weight = torch.randn(adjacency.num_edges, device="cuda")
    values, columns = maxk.select(x, k)
    maxk.scatter(values, columns, width)
    outlier = values.clone()
    outlier[0, 0] = 1e9
    for precision in ("highest", "high"):
        torch.set_float32_matmul_precision(precision)
        for given in (values, outlier):
            spgemm.spgemm(adjacency, None, given, columns, width)
    spgemm.spgemm(adjacency, weight, values, columns, width)
    for plan in backward_plans(k):
        for given_weight in (None, weight):
            sspmm.run(plan, adjacency, given_weight, grad, columns)
    sspmm.sddmm(adjacency, values, columns, grad)
    sspmm.pick(grad, columns)
    spmm.sddmm_dense(adjacency, x, grad)


if __name__ == "__main__":
    torch.manual_seed(0)
    graph = small_graph()
    for shape in SHAPES:
        run(graph, *shape)
    torch.cuda.synchronize()
    print("every kernel ran")
