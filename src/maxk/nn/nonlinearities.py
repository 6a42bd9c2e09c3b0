"""The nonlinearities that are compared under one recipe: regular, irregular and no sparsity.

All of them read k as a share: k of D entries of a hidden row. ``maxk`` and ``maxk-grouped`` keep
exactly k in every row and return CBSR; the others return dense rows, whose zeros lie anywhere.
"""

from __future__ import annotations

from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maxk.cbsr import CBSR, column_dtype
from maxk.core.checks import check_k
from maxk.nn.children import is_plain
from maxk.nn.functional import drop
from maxk.ops.maxk.op import maxk
from maxk.ops.norm_maxk.op import layer_norm_maxk

Nonlinearity = Literal["maxk", "relu", "maxk-grouped", "fatrelu", "dropout-relu"]
NONLINEARITIES: tuple[str, ...] = get_args(Nonlinearity)
#: Those that return CBSR.
REGULAR = ("maxk", "maxk-grouped")


def maxk_grouped(x: Tensor, k: int, groups: int) -> CBSR:
    r"""Keeps the k / g largest entries of each of g blocks of neighbouring columns.

    .. math:: h_{i,j} = x_{i,j} \text{ where } j \in \operatorname{top}_{k/g}(x_{i,B}),\ j \in B

    with blocks B of D / g columns. The contract is that of :func:`maxk.maxk` inside each block;
    with one group it is MaxK, with k groups one entry of each block survives.

    Args:
        x: [N, D], floating point.
        k: number of entries to keep in a row, in [1, D].
        groups: g, a divisor of k and of D.

    Returns:
        CBSR of k values and columns a row.

    Raises:
        ValueError: ``k`` lies outside [1, D], or ``groups`` divides one of k and D not.

    Example:
        >>> import torch
        >>> from maxk.nn.nonlinearities import maxk_grouped
        >>> maxk_grouped(torch.tensor([[4.0, 3.0, 1.0, 2.0]]), k=2, groups=2).to_dense()
        tensor([[4., 0., 0., 2.]])
    """
    rows, width = x.shape
    _check_groups(check_k(k, width), groups, width)
    block = width // groups
    inner = maxk(x.reshape(rows * groups, block), k // groups)
    first = torch.arange(0, width, block, device=x.device, dtype=torch.int32)
    columns = inner.columns.reshape(rows, groups, k // groups).int() + first[:, None]
    values = inner.values.reshape(rows, k)
    return CBSR(values, columns.reshape(rows, k).to(column_dtype(width)), width, in_range=True)


def fatrelu(x: Tensor, k: int, threshold: float | None = None) -> Tensor:
    r"""Thresholded ReLU (`Kurtz et al. <https://proceedings.mlr.press/v119/kurtz20a.html>`_).

    .. math:: h_{i,j} = x_{i,j} \text{ where } x_{i,j} > \tau,\ 0 \text{ elsewhere}

    Without a threshold, tau is the value that k N of the N D entries exceed, or 0 where fewer are
    positive: the matrix is as sparse as MaxK makes it, its rows are not.

    Args:
        x: [N, D], floating point.
        k: entries that a row keeps on average, in [1, D]; k = D is ReLU.
        threshold: tau, at least 0.

    Returns:
        Dense [N, D]; no gradient flows through tau.

    Example:
        >>> import torch
        >>> from maxk.nn.nonlinearities import fatrelu
        >>> fatrelu(torch.tensor([[1.0, 5.0], [4.0, -1.0]]), k=1)
        tensor([[0., 5.],
                [4., 0.]])
    """
    if threshold is not None:
        return F.threshold(x, threshold, 0.0)
    if check_k(k, x.shape[1]) == x.shape[1] or not x.numel():
        return x.relu()
    kept = x.detach().reshape(-1).topk(x.shape[0] * k + 1, sorted=False).values
    return x.where(x > kept.amin().clamp(min=0), 0)


def dropout_relu(x: Tensor, k: int, training: bool) -> Tensor:
    r"""ReLU whose entries survive at random with probability k / D, scaled by D / k.

    Args:
        x: [N, D], floating point.
        k: entries of a row that survive on average, in [1, D].
        training: False is plain ReLU, as for dropout.

    Returns:
        Dense [N, D].

    Example:
        >>> import torch
        >>> from maxk.nn.nonlinearities import dropout_relu
        >>> dropout_relu(torch.tensor([[1.0, -1.0]]), k=1, training=False)
        tensor([[1., 0.]])
    """
    share = check_k(k, x.shape[1]) / x.shape[1]
    return drop(x.relu(), 1.0 - share) if training else x.relu()


class Activation(nn.Module):
    """One of :data:`NONLINEARITIES` with its settings; it has no parameters.

    Args:
        nonlinearity: its name.
        width: D.
        k: see the functions of this file; "relu" reads none.
        groups: of "maxk-grouped".
        threshold: of "fatrelu"; by default it follows k.

    Shape:
        input [N, D]; output CBSR of [N, k] for "maxk" and "maxk-grouped", else dense [N, D].

    Raises:
        ValueError: the name is unknown, or a setting that it reads is out of range.
    """

    def __init__(
        self,
        nonlinearity: Nonlinearity,
        width: int,
        k: int,
        *,
        groups: int = 1,
        threshold: float | None = None,
    ) -> None:
        super().__init__()
        if nonlinearity not in NONLINEARITIES:
            names = ", ".join(map(repr, NONLINEARITIES[:-1]))
            raise ValueError(
                f"nonlinearity must be {names} or {NONLINEARITIES[-1]!r}, got {nonlinearity!r}"
            )
        if nonlinearity != "relu":
            check_k(k, width)
        if nonlinearity == "maxk-grouped":
            _check_groups(k, groups, width)
        if threshold is not None and not threshold >= 0:
            raise ValueError(f"threshold must be at least 0 (0 is ReLU), got {threshold}")
        self.nonlinearity, self.width, self.k = nonlinearity, width, k
        self.groups, self.threshold = groups, threshold

    def forward(self, x: Tensor, norm: nn.Module | None = None) -> CBSR | Tensor:
        """Applies the nonlinearity to every row, behind a norm where one is given."""
        if self.nonlinearity == "maxk" and norm is not None and is_plain(norm, nn.LayerNorm):
            layer_norm = cast(nn.LayerNorm, norm)
            if layer_norm.bias is not None:
                weight, bias = layer_norm.weight, layer_norm.bias
                return layer_norm_maxk(x, weight, bias, self.k, layer_norm.eps)
        if norm is not None:
            x = norm(x)
        match self.nonlinearity:
            case "maxk":
                return maxk(x, self.k)
            case "maxk-grouped":
                return maxk_grouped(x, self.k, self.groups)
            case "fatrelu":
                return fatrelu(x, self.k, self.threshold)
            case "dropout-relu":
                return dropout_relu(x, self.k, self.training)
        return x.relu()

    def extra_repr(self) -> str:
        """The arguments, for printing a model."""
        if self.nonlinearity == "relu":
            return "'relu'"
        groups = f", groups={self.groups}" if self.nonlinearity == "maxk-grouped" else ""
        return f"{self.nonlinearity!r}, width={self.width}, k={self.k}{groups}"


def _check_groups(k: int, groups: int, width: int) -> None:
    if not isinstance(groups, int) or groups < 1 or k % groups or width % groups:
        raise ValueError(
            f"groups must divide k={k} and the width D={width}, got groups={groups}; "
            "choose a common divisor"
        )
