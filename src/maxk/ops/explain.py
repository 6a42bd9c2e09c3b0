"""What would run, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maxk.cbsr import CBSR
from maxk.graph.graph import Graph
from maxk.ops.dispatch import OPERATIONS, choose


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
        op: "maxk", "spgemm", "sspmm", "spmm", or "aggregate" for the pair that an aggregation and
            its gradient use.
        operands: what the operation takes: ``x`` for "maxk" (with ``k=``), ``graph, features`` for
            the others.
        k: entries kept, for "maxk".
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
        graph, features = operands
        assert isinstance(graph, Graph)
        width, stored = _shape(features, k)
        if op == "spgemm":
            from maxk.ops.spgemm.plan import plan_cpu

            plan = plan_cpu(graph.num_src, graph.num_edges, width, stored)
            return f"{plan.variant}: {plan.reason}"
        from maxk.ops.sspmm.plan import plan_cpu as plan_backward

        chosen = plan_backward(graph.num_src, width, stored, torch.get_num_threads())
        return f"{chosen.variant}: {chosen.reason}"
    return ""


def _shape(features: CBSR | Tensor, k: int | None) -> tuple[int, int]:
    if isinstance(features, CBSR):
        return features.width, features.k
    return features.shape[1], features.shape[1] if k is None else k
