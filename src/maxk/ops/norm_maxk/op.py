"""LayerNorm and MaxK as one operation: dense features in, CBSR out."""

from __future__ import annotations

from torch import Tensor

from maxk.cbsr import CBSR
from maxk.ops.autograd import calls
from maxk.ops.contract import check_norm_select


def layer_norm_maxk(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    k: int,
    eps: float = 1e-5,
    *,
    implementation: str | None = None,
) -> CBSR:
    r"""Normalises every row and keeps the k largest entries.

    .. math:: h_i = \operatorname{MaxK}_k\Big(\frac{x_i - \operatorname{mean}(x_i)}
              {\sqrt{\operatorname{var}(x_i) + \epsilon}} \odot w + b\Big)

    `LayerNorm <https://arxiv.org/abs/1607.06450>`_ followed by :func:`maxk.maxk`, with its
    contract. On a GPU one kernel reads x once and writes CBSR only, and one kernel makes the
    gradient of x, w and b; no normalised matrix [N, D] is written or kept. Sums are float32
    (float64 for float64).

    Args:
        x: [N, D], float32, float64, float16 or bfloat16.
        weight: w, [D].
        bias: b, [D].
        k: number of entries to keep, in [1, D].
        eps: added to the variance.
        implementation: "reference", "cpu" or "cuda"; by default the device decides.

    Returns:
        CBSR of values [N, k] in the dtype of ``x`` and columns [N, k].

    Raises:
        TypeError: ``x`` is no dense floating-point tensor, or ``k`` is no int.
        ValueError: shapes or devices disagree, or ``k`` lies outside [1, D].

    Example:
        >>> import torch, maxk
        >>> x = torch.tensor([[1.0, 5.0, 1.0, 1.0]])
        >>> maxk.layer_norm_maxk(x, torch.ones(4), torch.zeros(4), k=1).columns
        tensor([[1]], dtype=torch.uint8)
    """
    check_norm_select(x, weight, bias, k)
    values, columns = calls(implementation).norm_select(x.contiguous(), weight, bias, eps, k)
    return CBSR(values, columns, x.shape[1], in_range=True)
