"""The MaxK nonlinearity: dense features in, CBSR out."""

from __future__ import annotations

from torch import Tensor

from maxk.cbsr import CBSR
from maxk.ops.autograd import calls
from maxk.ops.contract import check_select


def maxk(x: Tensor, k: int, *, implementation: str | None = None) -> CBSR:
    r"""Keeps the k largest entries of every row.

    .. math:: h_{i,j} = x_{i,j} \text{ where } j \in \operatorname{top}_k(x_i),\ 0 \text{ elsewhere}

    The nonlinearity of `MaxK-GNN <https://arxiv.org/abs/2312.08656>`_ (Peng et al., ASPLOS 2024).

    Contract: entries rank by signed value; **exactly** k are stored in every row, also where they
    are 0 or negative; ties go to the lowest column; NaN of either sign ranks above +inf and passes
    through; a NaN or infinity that is dropped becomes 0; -0.0 equals 0.0; ``k == D`` is the
    identity. The order of the entries inside a row is the implementation's to choose. The gradient
    flows at stored positions only, and can be differentiated again.

    Args:
        x: [N, D], float32, float64, float16 or bfloat16, any strides.
        k: number of entries to keep, in [1, D].
        implementation: "reference", "cpu" or "cuda"; by default the device decides.

    Returns:
        CBSR of values [N, k] in the dtype of ``x`` and columns [N, k].

    Raises:
        TypeError: ``x`` is no dense floating-point tensor, or ``k`` is no int.
        ValueError: ``x`` has no shape [N, D], or ``k`` lies outside [1, D].

    Example:
        >>> import torch, maxk
        >>> maxk.maxk(torch.tensor([[0.0, -1.0, -2.0, 5.0]]), k=2).to_dense()
        tensor([[0., 0., 0., 5.]])
    """
    check_select(x, k)
    values, columns = calls(implementation).select(x.contiguous(), k)
    return CBSR(values, columns, x.shape[1], in_range=True)


def to_dense(features: CBSR, *, implementation: str | None = None) -> Tensor:
    """The dense matrix [N, D] of CBSR features, by the operation's own kernel."""
    return calls(implementation).scatter(features.values, features.columns, features.width)
