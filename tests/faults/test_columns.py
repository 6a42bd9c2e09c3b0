"""Neither columns of hand-made CBSR features nor ids of a graph lead elsewhere in memory."""

from __future__ import annotations

import pytest
import torch

import maxk
from maxk.cbsr import column_dtype


@pytest.mark.parametrize(
    ("width", "column"), [(10, 10), (10, 200), (300, -5), (300, 300), (300, 32_000), (40_000, -1)]
)
def test_a_column_outside_the_row_is_refused_where_it_is_made(width: int, column: int) -> None:
    columns = torch.zeros(3, 2, dtype=column_dtype(width))
    columns[:, 1] = 1
    columns[2, 1] = column
    with pytest.raises(ValueError, match=rf"columns must lie in \[0, {width - 1}\], row 2 holds"):
        maxk.CBSR(torch.ones(3, 2), columns, width)
    good = maxk.CBSR(torch.ones(3, 2), columns.clamp(0, width - 1), width)
    assert good.k == 2
    with pytest.raises(ValueError, match="columns must lie in"):
        maxk.CBSR(torch.ones(3, 2), columns, width).with_values(torch.zeros(3, 2))


@pytest.mark.parametrize("width", [1, 256, 257, 32_768])
def test_the_last_column_is_inside(width: int) -> None:
    columns = torch.full((2, 1), width - 1).to(column_dtype(width))
    graph = maxk.Graph.from_edge_index(torch.tensor([[0], [1]]), 2)
    y = maxk.aggregate(graph, maxk.CBSR(torch.ones(2, 1), columns, width), "sum")
    assert y[1, width - 1] == 1
    assert y.sum() == 1


@pytest.mark.parametrize("rows", [0, 1, 2, 4, 100])
@pytest.mark.parametrize("compressed", [True, False])
def test_other_than_one_row_a_node_is_refused(
    implementation: str, device: torch.device, rows: int, compressed: bool
) -> None:
    graph = maxk.Graph.from_edge_index(torch.tensor([[0, 2], [1, 0]]), 3).to(device)
    x = torch.ones(rows, 8, device=device)
    h = maxk.maxk(x, 2, implementation=implementation) if compressed else x
    with pytest.raises(ValueError, match=f"each of the graph's 3 source nodes, got {rows} rows"):
        maxk.aggregate(graph, h, "sum", implementation=implementation)
