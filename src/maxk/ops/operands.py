"""Operands of a CPU kernel: one dtype, and scales put where they cost least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from maxk.graph.adjacency import Adjacency
from maxk.ops.spmm.reference import accumulation_dtype

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Operands:
    """Operands of one product, all in the accumulation dtype.

    Attributes:
        features: what is summed, with the scale of its own rows already applied.
        weight: [E] or None for ones.
        row_scale: scale of the result's rows, or None.
    """

    features: Tensor
    weight: Array | None
    row_scale: Tensor | None


def operands(
    adjacency: Adjacency, weight: Tensor | None, features: Tensor, *, transposed: bool = False
) -> Operands:
    """Prepares a product with the graph, or with its transpose.

    The scale on the gathered side is applied once to the features, N x k (or M x D) multiplications
    in place of one an edge; the scale on the result's side is left to the kernel's write-out.
    """
    dtype = accumulation_dtype(features.dtype)
    inner, outer = adjacency.column_scale, adjacency.row_scale
    if transposed:
        inner, outer = outer, inner
    wide = features.to(dtype)
    if inner is not None:
        wide = wide * inner.to(dtype)[:, None]
    return Operands(
        wide,
        None if weight is None else weight.to(dtype).contiguous().numpy(),
        None if outer is None else outer.to(dtype),
    )


def array(tensor: Tensor | None) -> Array | None:
    """A NumPy view of a CPU tensor, or None."""
    return None if tensor is None else tensor.numpy()
