"""One graph as an operation sees it: plain tensors and two scales."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from maxk.graph.csr import CSR, Transpose
from maxk.graph.schedule import Schedule


@dataclass(frozen=True)
class Adjacency:
    r"""The matrix :math:`R A C` whose rows are targets.

    .. math:: y_t = R_t \sum_{e = (s \to t)} w_e\, C_s\, h_s

    ``w`` travels beside it, since it may want a gradient; ``R`` and ``C`` (what mean and symmetric
    normalisation need) do not.

    Attributes:
        csr: the edges.
        row_scale: [M] or None; float32, or float64 beside float64 features.
        column_scale: [N] or None; the same dtype.
    """

    csr: CSR
    row_scale: Tensor | None = None
    column_scale: Tensor | None = None

    @property
    def indptr(self) -> Tensor:
        """int64 [M + 1]."""
        return self.csr.indptr

    @property
    def indices(self) -> Tensor:
        """[E] source of each edge."""
        return self.csr.indices

    @property
    def t_indptr(self) -> Tensor:
        """int64 [N + 1] of the transpose."""
        return self.csr.transpose.indptr

    @property
    def t_indices(self) -> Tensor:
        """[E] target of each edge, in source order."""
        return self.csr.transpose.indices

    @property
    def t_edges(self) -> Tensor:
        """int64 [E] CSR position of each edge, in source order."""
        return self.csr.transpose.edges

    @property
    def num_dst(self) -> int:
        """M."""
        return self.csr.num_dst

    @property
    def num_src(self) -> int:
        """N."""
        return self.csr.num_src

    @property
    def num_edges(self) -> int:
        """E."""
        return self.csr.num_edges

    @property
    def device(self) -> torch.device:
        """Where the tensors live."""
        return self.csr.device

    @property
    def schedule(self) -> Schedule:
        """GPU work schedule of the rows."""
        return self.csr.schedule

    @property
    def t_schedule(self) -> Schedule:
        """GPU work schedule of the transpose's rows."""
        return self.csr.t_schedule

    def entries(self, weight: Tensor | None, dtype: torch.dtype) -> Tensor:
        """R[t] * w[e] * C[s] of every edge, [E] in CSR order: what a plain sparse matrix holds."""
        value = torch.ones(self.num_edges, dtype=dtype, device=self.device)
        if weight is not None:
            value = value * weight.to(dtype)
        if self.row_scale is not None:
            value = value * self.row_scale.to(dtype)[self.csr.rows().long()]
        if self.column_scale is not None:
            value = value * self.column_scale.to(dtype)[self.indices.long()]
        return value

    def tensors(self) -> list[Tensor]:
        """Everything but the scales, as the list that a registered operation takes."""
        t = self.csr.transpose
        return [self.indptr, self.indices, t.indptr, t.indices, t.edges]

    @staticmethod
    def from_tensors(
        tensors: list[Tensor], row_scale: Tensor | None, column_scale: Tensor | None
    ) -> Adjacency:
        """Inverse of :meth:`tensors`."""
        indptr, indices, t_indptr, t_indices, t_edges = tensors
        num_src = t_indptr.shape[0] - 1
        csr = CSR(indptr, indices, num_src, transpose=Transpose(t_indptr, t_indices, t_edges))
        return Adjacency(csr, row_scale, column_scale)
