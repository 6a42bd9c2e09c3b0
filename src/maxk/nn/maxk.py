"""MaxK as a module."""

from __future__ import annotations

from torch import Tensor, nn

from maxk.cbsr import CBSR
from maxk.core.checks import check_k
from maxk.nn.functional import check_caller
from maxk.ops.maxk.op import maxk


class MaxK(nn.Module):
    """Keeps the k largest entries of every row; see :func:`maxk.maxk`.

    Args:
        k: number of entries to keep.
        compressed: return CBSR for a layer of this package, in place of a dense tensor for any
            other. As ``act=`` of a foreign model it must stay False.

    Shape:
        input [N, D], output [N, D] or CBSR of [N, k].

    Example:
        >>> import torch
        >>> from maxk.nn import MaxK
        >>> MaxK(1)(torch.tensor([[1.0, 3.0, 2.0]]))
        tensor([[0., 3., 0.]])
    """

    def __init__(self, k: int, *, compressed: bool = False) -> None:
        super().__init__()
        self.k = check_k(k, max(k, 1) if isinstance(k, int) else 1)
        self.compressed = compressed

    def forward(self, x: Tensor) -> CBSR | Tensor:
        """Applies MaxK to the last dimension."""
        check_caller(self)
        rows = maxk(x.reshape(-1, x.shape[-1]), self.k)
        if self.compressed:
            return rows
        return rows.to_dense().reshape(x.shape)

    def extra_repr(self) -> str:
        """The arguments, for printing a model."""
        return f"k={self.k}" + (", compressed=True" if self.compressed else "")
