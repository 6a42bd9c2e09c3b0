"""The dense product and the three CBSR kernels once on the reddit-like graph, for ncu.

    PYTHONPATH=src ncu --clock-control none --csv --metrics $METRICS python3 tools/traffic.py

with METRICS = gpu__time_duration.sum,dram__bytes.sum,lts__t_bytes.sum,l1tex__t_bytes.sum,
l1tex__t_sector_hit_rate.pct,lts__t_sector_hit_rate.pct. The kernels between the profiler's start
and stop are measured; everything before prepares.
"""

from __future__ import annotations

import torch

from maxk.data.synthetic import SHAPES, generate
from maxk.graph.graph import Graph
from maxk.ops.maxk import cuda as maxk
from maxk.ops.spgemm import cuda as spgemm
from maxk.ops.spmm import cuda as spmm
from maxk.ops.sspmm import cuda as sspmm

WIDTH, K = 256, 32


def main() -> None:
    """Prepares once, then runs each product once under the profiler."""
    made = generate(SHAPES["reddit-like"], device="cuda")
    adjacency = Graph.from_edge_index(made.edge_index, made.num_nodes).adjacency(
        "mean", torch.float32
    )
    x = torch.randn(made.num_nodes, WIDTH, device="cuda")
    values, columns = maxk.select(x, K)
    products = [
        lambda: spmm.spmm(adjacency, None, x),
        lambda: spgemm.spgemm(adjacency, None, values, columns, WIDTH),
        lambda: sspmm.sspmm(adjacency, None, x, columns),
        lambda: maxk.select(x, K),
    ]
    torch.set_float32_matmul_precision("high")
    for product in products:
        product()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for product in products:
        product()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main()
