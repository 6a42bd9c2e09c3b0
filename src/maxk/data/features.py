"""Features as float32, checked and scaled."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from maxk.core.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

Scaling = Literal["none", "row", "standard"]
SCALINGS: tuple[Scaling, ...] = ("none", "row", "standard")


def check_scaling(scaling: str) -> Scaling:
    """Return ``scaling`` if it is one of the three."""
    for known in SCALINGS:
        if scaling == known:
            return known
    raise ValueError(f"scaling must be one of {', '.join(SCALINGS)}, got {scaling!r}")


def check_features(raw: NDArray[Any] | Tensor, what: str) -> Tensor:
    """Make float32 features [N, F] of any numbers; a torch.sparse_csr tensor stays sparse.

    Raises:
        DataError: the array holds no numbers, has no columns, or holds NaN or infinity.
    """
    if isinstance(raw, torch.Tensor):
        x = raw
    else:
        if raw.dtype.kind not in "fiub":
            raise DataError(f"{what} must hold numbers, got {raw.dtype}")
        if raw.ndim == 1:
            raw = raw[:, None]
        if raw.ndim != 2:
            raise DataError(f"{what} must have shape [N, F], got {list(raw.shape)}")
        x = torch.from_numpy(np.ascontiguousarray(raw.astype(np.float32, copy=False)))
    if x.shape[1] == 0:
        raise DataError(f"{what} must have at least one column, got shape {list(x.shape)}")
    sparse = x.layout == torch.sparse_csr
    finite = (x.values() if sparse else x).isfinite()
    if not bool(finite.all()):
        place = (~finite).nonzero()[0].tolist()
        if sparse:
            row = int(torch.searchsorted(x.crow_indices(), place[0], right=True)) - 1
            place = [row, int(x.col_indices()[place[0]])]
        value = float(x[place[0]].to_dense()[place[1]])
        raise DataError(
            f"{what} must be finite, got {value} at row {place[0]}, column {place[1]}; "
            "fill in or drop what is missing"
        )
    return x


def scale_features(x: Tensor, scaling: Scaling) -> Tensor:
    r"""Scale features.

    Args:
        x: float32 [N, F], dense or torch.sparse_csr.
        scaling: ``"none"`` leaves them. ``"row"`` divides each row by the sum of its absolute
            values, as usual for bags of words. ``"standard"`` makes each column's mean 0 and
            standard deviation 1 over all nodes; sparse features are only divided, as subtracting
            would fill them. A row of zeros stays; a column without spread becomes 0, or stays
            where features are sparse.
    """
    if scaling == "none":
        return x
    sparse = x.layout == torch.sparse_csr
    if scaling == "row":
        if not sparse:
            return x / _or_one(x.abs().sum(dim=1, keepdim=True))
        rows = _rows(x)
        totals = x.values().new_zeros(x.shape[0]).index_add_(0, rows, x.values().abs())
        return _with_values(x, x.values() / _or_one(totals)[rows])
    if not sparse:
        deviation, mean = torch.std_mean(x.double(), dim=0, correction=0)
        return ((x - mean) / _or_one(deviation)).float()
    columns, values = x.col_indices(), x.values().double()
    moments = values.new_zeros(2, x.shape[1])
    moments.index_add_(1, columns, torch.stack([values, values.square()]))
    mean, square = moments / x.shape[0]
    deviation = (square - mean.square()).clamp_min(0).sqrt()
    return _with_values(x, (values / _or_one(deviation)[columns]).float())


def identity_features(nodes: int) -> Tensor:
    """One column per node, torch.sparse_csr: a linear layer on it learns a vector for each node."""
    ids = torch.arange(nodes + 1, device="cpu")
    ones = torch.ones(nodes, dtype=torch.float32, device="cpu")
    return sparse_tensor(ids, ids[:-1], ones, (nodes, nodes))


def sparse_tensor(crow: Tensor, column: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A torch.sparse_csr matrix, without the beta warning that torch gives once per process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        return torch.sparse_csr_tensor(
            crow, column, values, size=shape, device=values.device, check_invariants=True
        )


def _or_one(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, torch.ones_like(scale), scale)


def _rows(x: Tensor) -> Tensor:
    counts = x.crow_indices().diff()
    return torch.repeat_interleave(torch.arange(x.shape[0], device=x.device), counts)


def _with_values(x: Tensor, values: Tensor) -> Tensor:
    shape = (x.shape[0], x.shape[1])
    return sparse_tensor(x.crow_indices(), x.col_indices(), values, shape)
