"""Argument checks. Every message says what, what it got, what is allowed, and the cure."""

from __future__ import annotations

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def check_k(k: int, width: int, name: str = "k") -> int:
    """Returns ``k`` if it is an int in [1, width].

    Raises:
        TypeError: ``k`` is not an int (a bool is none).
        ValueError: ``k`` lies outside [1, width].
    """
    if isinstance(k, torch.SymInt):
        return k
    if not isinstance(k, int) or isinstance(k, bool):
        raise TypeError(f"{name} must be an int in [1, D], got {k!r} of type {type(k).__name__}")
    if not 1 <= k <= width:
        raise ValueError(
            f"{name} must lie in [1, {width}] (the rows have D={width} columns), got {name}={k}"
        )
    return k


def check_matrix(x: Tensor, name: str) -> Tensor:
    """Returns ``x`` if it is a dense floating-point matrix.

    Raises:
        TypeError: ``x`` is no tensor or holds no floating-point numbers.
        ValueError: ``x`` is not two-dimensional, or has no columns.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    if x.layout != torch.strided:
        raise TypeError(
            f"{name} must be a dense tensor, got layout {x.layout}; call {name}.to_dense() first"
        )
    if x.dtype not in FLOATS:
        raise TypeError(
            f"{name} must hold float32, float64, float16 or bfloat16, got {x.dtype}; "
            f"call {name}.float() first"
        )
    if x.dim() != 2:
        raise ValueError(f"{name} must have shape [N, D], got {list(x.shape)}")
    if x.shape[1] == 0:
        raise ValueError(f"{name} must have at least one column, got shape {list(x.shape)}")
    return x


def check_same_device(a: torch.device, a_name: str, b: torch.device, b_name: str) -> None:
    """Raises ValueError when two operands live on different devices."""
    if a != b:
        raise ValueError(
            f"{a_name} and {b_name} must be on one device, got {a} and {b}; "
            f"move one of them with .to(...)"
        )


def check_rows(rows: int, expected: int, name: str, what: str) -> None:
    """Raises ValueError when a matrix has another number of rows than the graph has nodes."""
    if rows != expected:
        raise ValueError(f"{name} must have one row for each of the graph's {expected} {what}, "
                         f"got {rows} rows")  # fmt: skip
