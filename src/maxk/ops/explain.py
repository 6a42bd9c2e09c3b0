"""What would run, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maxk.cbsr import CBSR
from maxk.ops.dispatch import OPERATIONS, choose
from maxk.ops.shape import FeatureShape


@dataclass(frozen=True)
class Explanation:
    """The choice made for one operation.

    Attributes:
        op: the operation.
        implementation: "reference", "cpu" or "cuda".
        reason: why this implementation.
        plan: the variant inside it with its reason, or "" where there is only one.
    """

    op: str
    implementation: str
    reason: str
    plan: str = ""

    def __str__(self) -> str:
        plan = f"; {self.plan}" if self.plan else ""
        return f"{self.op}: {self.implementation} ({self.reason}){plan}"


def explain(
    op: str, *operands: Any, k: int | None = None, implementation: str | None = None
) -> Any:
    """Says which implementation an operation would use here, and why; runs nothing.

    Args:
        op: "maxk", "norm_maxk", "spgemm", "sspmm", "spmm", or "aggregate" for the pair that an
            aggregation and its gradient use.
        operands: what the operation takes: ``x`` for the first two (with ``k=``), ``graph,
            features`` for the others.
        k: entries kept, for the first two.
        implementation: as in the call itself.

    Returns:
        An :class:`Explanation`, or a tuple of two for "aggregate".

    Raises:
        ValueError: the operation is unknown.

    Example:
        >>> import torch, maxk
        >>> print(maxk.explain("maxk", torch.randn(8, 16), k=4))
        maxk: cpu (operands on the CPU)
    """
    if op == "aggregate":
        names = ("spgemm", "sspmm") if isinstance(operands[1], CBSR) else ("spmm", "spmm")
        return tuple(_explain(name, operands, k, implementation) for name in dict.fromkeys(names))
    if op not in OPERATIONS:
        raise ValueError(f"op must be one of {(*OPERATIONS, 'aggregate')}, got {op!r}")
    return _explain(op, operands, k, implementation)


def _explain(
    op: str, operands: tuple[Any, ...], k: int | None, implementation: str | None
) -> Explanation:
    device = operands[-1].device
    choice = choose(op, device, implementation)
    plan = _plan(op, choice.implementation, operands, k)
    return Explanation(op, choice.implementation, choice.reason, plan)


def _plan(op: str, implementation: str, operands: tuple[Any, ...], k: int | None) -> str:
    if implementation == "cpu" and op in ("spgemm", "sspmm"):
        return _cpu_plan(op, operands, k)
    if implementation == "cuda" and op != "spmm":
        return _cuda_plan(op, operands, k)
    return ""


def _cpu_plan(op: str, operands: tuple[Any, ...], k: int | None) -> str:
    graph, features = operands
    width, stored = _shape(features, k)
    if op == "spgemm":
        from maxk.ops.spgemm.plan import plan_cpu

        forward = plan_cpu(width, stored)
        return f"{forward.variant}: {forward.reason}"
    from maxk.ops.sspmm.plan import plan_cpu as plan_backward

    backward = plan_backward(graph.num_src, width, stored, torch.get_num_threads())
    return f"{backward.variant}: {backward.reason}"


def _cuda_plan(op: str, operands: tuple[Any, ...], k: int | None) -> str:
    shape = FeatureShape(*_shape(operands[-1], k), operands[-1].dtype)
    if op == "maxk":
        from maxk.ops.maxk.plan_cuda import plan_cuda

        select = plan_cuda(shape)
        return f"{select.kernel}: {select.reason}"
    if op == "norm_maxk":
        from maxk.ops.norm_maxk.plan_cuda import plan_cuda as plan_norm

        fused = plan_norm(shape)
        return f"{fused.kernel}: {fused.reason}"
    graph = operands[0]
    if op == "spgemm":
        from maxk.ops.spgemm.plan_cuda import plan_cuda as plan_forward

        forward = plan_forward(graph, shape, weighted=graph.edge_weight is not None)
        return f"{forward.kernel}: {forward.reason}"
    from maxk.device.properties import properties
    from maxk.ops.sspmm.plan_cuda import plan_cuda as plan_backward

    backward = plan_backward(graph, shape, properties(operands[-1].device))
    return f"{backward.kernel}: {backward.reason}"


def _shape(features: CBSR | Tensor, k: int | None) -> tuple[int, int]:
    if isinstance(features, CBSR):
        return features.width, features.k
    return features.shape[1], features.shape[1] if k is None else k
