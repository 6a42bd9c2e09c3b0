"""MaxK in plain PyTorch: the definition that every implementation is tested against."""

from __future__ import annotations

from torch import Tensor

from maxk.cbsr import column_dtype, largest_columns


def select(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest entries of every row: values [N, k] and columns [N, k], columns ascending."""
    columns = largest_columns(x, k)
    return x.gather(1, columns), columns.to(column_dtype(x.shape[1]))


def scatter(values: Tensor, columns: Tensor, width: int) -> Tensor:
    """Dense [N, D] with ``values`` at ``columns`` and 0 elsewhere."""
    dense = values.new_zeros(values.shape[0], width)
    return dense.scatter_(1, columns.long(), values)


def add(y: Tensor, values: Tensor, columns: Tensor, scale: Tensor) -> None:
    """Adds ``scale`` [1] times the entries to y [N, D], in place."""
    y.scatter_add_(1, columns.long(), (values * scale).to(y.dtype))
