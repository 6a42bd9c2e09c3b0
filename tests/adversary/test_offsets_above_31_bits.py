"""Ids that fit 32 bits, with offsets that do not."""

from __future__ import annotations

import os

import pytest
import torch

import maxk
from maxk.graph.csr import check_indptr
from maxk.graph.schedule import build_schedule


def test_offsets_are_checked_and_cut_in_64_bits():
    check_indptr(torch.tensor([0, 2**31]), 2**31)
    check_indptr(torch.tensor([0, 2**31 - 1, 2**32 + 5]), 2**32 + 5)
    for end in (2**31, 2**31 - 1):
        with pytest.raises(ValueError, match=rf"end at the number of entries.*\(1\), got {end}"):
            maxk.Graph.from_csr(torch.tensor([0, end]), torch.tensor([0]))
    # What a 32-bit pointer makes of 2^31.
    wrapped = torch.tensor([0, -(2**31)], dtype=torch.int32)
    with pytest.raises(ValueError, match=rf"got -{2**31}"):
        maxk.Graph.from_csr(wrapped, torch.tensor([0]))
    # Work is cut up with 64-bit offsets: 31 bits, and the rest above the number of edges.
    pieces = build_schedule(torch.tensor([2**31, 2**31 + 2, 2**31 + 5]), 5).pieces.tolist()
    starts = [(packed >> 16) << 31 | low for _, low, packed, _ in pieces]
    assert starts == [2**31, 2**31 + 2]


ROWS = 8_388_609  # times 256 is 2^31 + 256


def free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info()[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def roomy(device):
    needed = 12 * 2**30
    if free_memory(device) < needed:
        pytest.skip(f"needs {needed >> 30} GiB of free memory")


@pytest.mark.huge
@pytest.mark.usefixtures("roomy")
def test_the_last_row_is_read(implementation, device):
    """Fresh zeros take no memory on a CPU until they are written."""
    if implementation == "reference":
        pytest.skip("the reference sorts every row: 2^31 int64 positions")
    x = torch.zeros(ROWS, 256, device=device)
    x[-1] = 1
    graph = maxk.Graph.from_edge_index(torch.tensor([[ROWS - 1], [0]], device=device), (ROWS, 2))
    y = maxk.aggregate(graph, x, "sum", implementation=implementation)
    assert y.sum(1).tolist() == [256, 0]
    h = maxk.maxk(x, 1, implementation=implementation)
    assert (h.values[-1].item(), h.columns[-1].item()) == (1, 0)
    assert int(torch.count_nonzero(h.values)) == 1


@pytest.mark.huge
@pytest.mark.usefixtures("roomy")
def test_the_last_compressed_row_is_read(implementation, device):
    if implementation == "reference":
        pytest.skip("the reference scatters to a dense matrix of 2^36 entries")
    rows = 2**26 + 1  # times 32 is 2^31 + 32
    values = torch.zeros(rows, 32, device=device)
    columns = torch.zeros(rows, 32, dtype=torch.uint8, device=device)
    values[-1] = 1
    columns[-1] = torch.arange(0, 256, 8, device=device)
    graph = maxk.Graph.from_edge_index(torch.tensor([[rows - 1], [0]], device=device), (rows, 2))
    h = maxk.CBSR(values, columns, 256)
    y = maxk.aggregate(graph, h, "sum", implementation=implementation)
    assert y.sum(1).tolist() == [32, 0]
    assert y[0, ::8].eq(1).all()


@pytest.mark.huge
@pytest.mark.usefixtures("roomy")
def test_edges_after_the_first_2_31_are_read(implementation, device):
    """Rows of 512 edges fill the first 2^31 places; the last row's edges stand behind them."""
    if implementation == "reference":
        pytest.skip("the reference gathers a dense row for each of 2^31 edges")
    rows = 2**22
    indptr = 512 * torch.arange(rows + 2, device=device)
    indptr[-1] = 2**31 + 3
    indices = torch.zeros(2**31 + 3, dtype=torch.int32, device=device)
    indices[-3:] = torch.tensor([1, 2, 1], dtype=torch.int32)
    graph = maxk.Graph.from_csr(indptr, indices, num_src=3)
    x = torch.tensor([[1.0, 0, 0, 0], [0, 8, 4, 0], [0, 2, 0, 16]], device=device)
    # The gradient needs the transpose on a CPU, which sorts all of the edges.
    x.requires_grad_(device.type == "cuda")
    h = maxk.maxk(x, 2, implementation=implementation)
    y = maxk.aggregate(graph, h, "sum", implementation=implementation)
    assert y[-1].tolist() == [0, 18, 8, 16]
    assert y[:-1].amin(0).tolist() == y[:-1].amax(0).tolist() == [512, 0, 0, 0]
    if x.requires_grad:
        grad = torch.zeros_like(y)
        grad[-1] = 1
        y.backward(grad)
        assert x.grad.tolist() == [[0, 0, 0, 0], [0, 2, 2, 0], [0, 1, 0, 1]]


@pytest.mark.huge
@pytest.mark.usefixtures("roomy")
def test_the_last_row_is_written(implementation, device):
    graph = maxk.Graph.from_edge_index(torch.tensor([[0], [ROWS - 1]], device=device), (1, ROWS))
    h = maxk.maxk(torch.arange(256.0, device=device)[None], 32, implementation=implementation)
    y = maxk.aggregate(graph, h, "sum", implementation=implementation)
    assert y[-1, 224:].tolist() == list(range(224, 256))
    assert int(torch.count_nonzero(y[-1])) == 32
    assert not y[:2].any()
    assert not y[ROWS // 2].any()
