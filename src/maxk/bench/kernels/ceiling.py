"""The fastest that this machine's memory lets an operation be, measured: ``fraction``'s numerator.

Three access patterns bound the operations: a stream of its bytes (``copy``), one feature row
per edge (``gather``), one row of sums per edge added in place (``reduce``). On a GPU the last two
are run on the graph itself, without any arithmetic. On a CPU, where prefetch and caches blur the
patterns, the copy is used for all; gathers out of a cache then pass 100 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from maxk.bench.kernels.problem import Problem
from maxk.device.kernel import Spec, kernel
from maxk.measure.timer import interleave
from maxk.measure.traffic import Traffic, column_bytes

SOURCE = Path(__file__).with_suffix(".cu")
#: Bytes of the copy: past every cache that a machine of today has.
COPY_BYTES = {"cpu": 1 << 28, "cuda": 1 << 31}
WARPS = 8
EDGES_PER_WARP = 256


@dataclass(frozen=True)
class Ceiling:
    """The time that an operation's memory accesses take alone.

    Attributes:
        kind: ``copy``, ``gather`` or ``reduce``.
        ms: Milliseconds.
    """

    kind: str
    ms: float


def spec(pattern: str, words: int) -> Spec:
    """Returns the kernel instance of ``gather`` or ``reduce`` for rows of 32-bit words."""
    return Spec(SOURCE, f"{pattern}_rows", (("WORDS", words),))


class Ceilings:
    """The ceilings of one device; each is measured once, when it is asked for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copy: float | None = None
        self._rows: dict[tuple[int, str, int], float] = {}

    def of(self, op: str, problem: Problem, traffic: Traffic, *, dense: bool) -> Ceiling:
        """Returns the ceiling of an operation.

        Args:
            op: ``forward``, ``backward`` or ``maxk``.
            problem: Its sizes and its graph.
            traffic: Its bytes.
            dense: Whether it aggregates dense rows, or kept entries.
        """
        if op == "maxk" or self._device.type != "cuda":
            if self._copy is None:
                self._copy = copy_gbps(self._device)
            return Ceiling("copy", traffic.total / self._copy / 1e6)
        if dense:
            kind, nbytes = "gather", problem.width * problem.x.element_size()
        elif op == "forward":
            entry = problem.x.element_size() + column_bytes(problem.width)
            kind, nbytes = "gather", problem.k * entry
        else:
            kind, nbytes = "reduce", problem.k * 4
        words = -(-nbytes // 4)
        key = (id(problem.graph), kind, words)
        if key not in self._rows:
            self._rows[key] = _row_ms(kind, words, problem)
        return Ceiling(kind, self._rows[key])


def copy_gbps(device: torch.device) -> float:
    """Returns the rate of a large copy on one device, reads and writes counted."""
    count = COPY_BYTES[device.type] // 4
    source = torch.ones(count, device=device)
    target = torch.empty_like(source)
    times = interleave({"copy": lambda: target.copy_(source)}, device=device, rounds=7, cold=False)
    return 8 * count / times["copy"].ms / 1e6


def _row_ms(kind: str, words: int, problem: Problem) -> float:
    """Gathers, or adds into, one row of the source per edge, in the graph's own order."""
    graph = problem.graph
    indices, device = graph.indices.to(torch.int32), graph.device
    grid = -(-graph.num_edges // (WARPS * EDGES_PER_WARP))
    rows: Tensor
    if kind == "gather":
        rows = torch.randint(2**31 - 1, (graph.num_src, words), device=device, dtype=torch.int32)
        sink = torch.empty(1, dtype=torch.int32, device=device)
        gather = kernel(spec(kind, words), "pppli", device)

        def call() -> None:
            gather(grid, WARPS, indices, rows, sink, graph.num_edges, EDGES_PER_WARP)
    else:
        rows = torch.zeros(graph.num_src, words, device=device)
        reduce = kernel(spec(kind, words), "ppli", device)

        def call() -> None:
            reduce(grid, WARPS, indices, rows, graph.num_edges, EDGES_PER_WARP)

    return interleave({kind: call}, device=device, rounds=7)[kind].ms
