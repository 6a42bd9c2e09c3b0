"""Node features as a model reads them."""

from __future__ import annotations

import torch
from torch import Tensor


def prepare(x: Tensor, how: str, train_nodes: Tensor) -> Tensor:
    """Returns features rescaled, ``[N, F]`` in the layout of ``x``.

    Args:
        x: ``[N, F]`` float32, dense or sparse CSR.
        how: ``raw`` leaves them; ``row`` divides each row by the sum of its absolute values;
            ``standard`` gives each column mean 0 and variance 1 over the training nodes. Sparse
            features are scaled but not shifted, since a shift would fill them.
        train_nodes: Indices of the training nodes.
    """
    if how == "raw":
        return x
    if how == "row":
        return _scale_rows(x)
    return _standardise(x, train_nodes)


def _scale_rows(x: Tensor) -> Tensor:
    if x.layout == torch.strided:
        sums = x.abs().sum(dim=1, keepdim=True)
        return x / torch.where(sums > 0, sums, 1)
    rows = _row_of_each_entry(x)
    sums = x.values().new_zeros(x.shape[0]).index_add_(0, rows, x.values().abs())
    return _with_values(x, x.values() / torch.where(sums > 0, sums, 1)[rows])


def _standardise(x: Tensor, train_nodes: Tensor) -> Tensor:
    if x.layout == torch.strided:
        seen = x[train_nodes].double()
        mean, spread = seen.mean(dim=0), seen.std(dim=0, correction=0)
        # A column that is constant over the training nodes tells nothing of scale.
        return ((x - mean) / torch.where(spread > 0, spread, 1)).to(x.dtype)
    chosen = torch.zeros(x.shape[0], dtype=torch.bool, device=x.device)
    chosen[train_nodes] = True
    inside = chosen[_row_of_each_entry(x)]
    columns, values = x.col_indices()[inside], x.values()[inside].double()
    zeros = values.new_zeros(x.shape[1])
    count = max(int(train_nodes.numel()), 1)
    mean = zeros.index_add(0, columns, values) / count
    square = zeros.index_add(0, columns, values * values) / count
    spread = (square - mean * mean).clamp(min=0).sqrt()
    scale = torch.where(spread > 0, spread, 1)
    return _with_values(x, (x.values() / scale[x.col_indices()]).to(x.dtype))


def _row_of_each_entry(x: Tensor) -> Tensor:
    rows = torch.arange(x.shape[0], device=x.device)
    return rows.repeat_interleave(x.crow_indices().diff())


def _with_values(x: Tensor, values: Tensor) -> Tensor:
    return torch.sparse_csr_tensor(
        x.crow_indices(), x.col_indices(), values, size=x.shape, check_invariants=False
    )
