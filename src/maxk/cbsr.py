"""CBSR, the compressed balanced sparse rows of MaxK-GNN: k values and k columns a row."""

from __future__ import annotations

import copy
from dataclasses import InitVar, dataclass
from typing import Any

import torch
from torch import Tensor

from maxk.core.checks import FLOATS, check_k, check_matrix, check_same_device


def column_dtype(width: int) -> torch.dtype:
    """Smallest integer dtype that holds a column of a row of ``width`` entries.

    uint8 to 256 columns, int16 to 32,768, int32 beyond.
    """
    if width <= 256:
        return torch.uint8
    return torch.int16 if width <= 32768 else torch.int32


def largest_columns(x: Tensor, k: int) -> Tensor:
    """int64 [N, k]: columns of the k largest entries of every row, ascending.

    Ties go to the lowest column; NaN of either sign ranks above +inf; -0.0 equals 0.0. All three
    are what a stable descending sort does.
    """
    # Sorts on some devices tell a negative NaN from a positive one.
    x = x.masked_fill(x.isnan(), float("nan"))
    return x.sort(dim=1, descending=True, stable=True).indices[:, :k].sort(dim=1).values


def check_columns(columns: Tensor, width: int) -> None:
    """Refuses columns that are not [N, k] of the dtype of rows of ``width`` entries.

    Raises:
        TypeError: the dtype is not :func:`column_dtype` of ``width``.
        ValueError: the shape is not [N, k], or k lies outside [1, width].
    """
    if columns.dim() != 2:
        raise ValueError(f"columns must have shape [N, k], got {list(columns.shape)}")
    if columns.dtype != column_dtype(width):
        raise TypeError(
            f"columns of a matrix of width {width} must be {column_dtype(width)}, "
            f"got {columns.dtype}"
        )
    if not 1 <= columns.shape[1] <= width:
        raise ValueError(
            f"a row of width {width} holds between 1 and {width} entries, got {columns.shape[1]}"
        )


def check_entries(values: Tensor, columns: Tensor, width: int) -> None:
    """Refuses values and columns that are not those of one CBSR; reads no number of either.

    Raises:
        TypeError: a dtype is wrong.
        ValueError: shapes or devices disagree.
    """
    if values.dim() != 2 or values.shape != columns.shape:
        raise ValueError(
            "values and columns must share one shape [N, k], got "
            f"{list(values.shape)} and {list(columns.shape)}"
        )
    check_columns(columns, width)
    if values.dtype not in FLOATS:
        raise TypeError(f"values must be float32, float64, float16 or bfloat16, got {values.dtype}")
    check_same_device(values.device, "values", columns.device, "columns")


@dataclass(frozen=True)
class CBSR:
    """A matrix [N, D] with exactly k stored entries in every row.

    Attributes:
        values: [N, k] floating point; a stored value may be 0 or negative.
        columns: [N, k] integers in [0, D), distinct inside a row, in an order that the
            implementation chooses; dtype :func:`column_dtype` of D.
        width: D, the width of the dense matrix.

    Args:
        in_range: Say that the columns are known to lie in [0, D). Otherwise they are compared with
            it, since a kernel would write wherever they point; on a GPU that waits for the device.
            Nothing is compared while torch.compile traces or a CUDA graph is recorded. Shapes,
            dtypes and devices are always compared.

    Example:
        >>> import torch
        >>> from maxk.cbsr import CBSR
        >>> columns = torch.tensor([[0, 3]], dtype=torch.uint8)
        >>> CBSR(torch.tensor([[5.0, 7.0]]), columns, 4).to_dense()
        tensor([[5., 0., 0., 7.]])
    """

    values: Tensor
    columns: Tensor
    width: int
    in_range: InitVar[bool] = False

    def __post_init__(self, in_range: bool) -> None:
        check_entries(self.values, self.columns, self.width)
        if not in_range and not torch.compiler.is_compiling():
            self._check_range()

    @staticmethod
    def from_dense(x: Tensor, k: int) -> CBSR:
        """The k largest entries of every row of ``x`` [N, D], by a stable sort.

        The definition of MaxK in plain PyTorch, differentiable; :func:`maxk.maxk` is the fast way
        to the same entries. Columns ascend inside a row.
        """
        check_k(k, check_matrix(x, "x").shape[1])
        columns = largest_columns(x.detach(), k)
        columns, values = columns.to(column_dtype(x.shape[1])), x.gather(1, columns)
        return CBSR(values, columns, x.shape[1], in_range=True)

    def _check_range(self) -> None:
        """Raises ValueError where a column lies outside the row."""
        columns = self.columns
        # Columns of a tracer hold no numbers, and a dtype may hold nothing that is too large.
        if type(columns) is not Tensor or columns.is_meta or not columns.numel():
            return
        limits = torch.iinfo(columns.dtype)
        if limits.min == 0 and limits.max < self.width:
            return
        # Nothing can be read back while a CUDA graph is recorded.
        if columns.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        low, high = torch.stack(torch.aminmax(columns)).tolist()
        if low < 0 or high >= self.width:
            self.validate()

    @property
    def k(self) -> int:
        """Stored entries a row."""
        return self.values.shape[1]

    @property
    def num_rows(self) -> int:
        """N."""
        return self.values.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the values."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Where the entries live."""
        return self.values.device

    @property
    def nbytes(self) -> int:
        """Bytes of values and columns."""
        return self.values.nbytes + self.columns.nbytes

    def to_dense(self) -> Tensor:
        """The dense matrix [N, D]; gradient flows to the stored entries only."""
        dense = self.values.new_zeros(self.num_rows, self.width)
        return dense.scatter(1, self.columns.long(), self.values)

    def with_values(self, values: Tensor) -> CBSR:
        """The same columns with other values, for example after dropout."""
        return CBSR(values, self.columns, self.width, in_range=True)

    def to(self, *args: Any, **kwargs: Any) -> CBSR:
        """Moves or casts the values as ``Tensor.to`` does, and moves the columns along."""
        values = self.values.to(*args, **kwargs)
        return CBSR(values, self.columns.to(values.device), self.width, in_range=True)

    def validate(self) -> CBSR:
        """Checks what the constructor leaves: columns are distinct inside a row, and in range.

        Raises:
            ValueError: naming the first row that breaks the contract.
        """
        columns = self.columns.long().sort(dim=1).values
        if columns.numel():
            outside = (columns[:, 0] < 0) | (columns[:, -1] >= self.width)
            if bool(outside.any()):
                row = int(outside.nonzero()[0])
                raise ValueError(
                    f"columns must lie in [0, {self.width - 1}], row {row} holds "
                    f"{self.columns[row].tolist()}"
                )
            twice = (columns.diff(dim=1) == 0).any(dim=1)
            if bool(twice.any()):
                row = int(twice.nonzero()[0])
                raise ValueError(
                    f"columns must be distinct in a row, row {row} holds "
                    f"{self.columns[row].tolist()}"
                )
        return self

    def __copy__(self) -> CBSR:
        return self.with_values(self.values)

    def __deepcopy__(self, memo: dict[int, Any]) -> CBSR:
        values, columns = (_copied(tensor, memo) for tensor in (self.values, self.columns))
        return CBSR(values, columns, self.width, in_range=True)

    def __getstate__(self) -> dict[str, Any]:
        # A view takes the whole of its storage along into a file or another process.
        state = self.__dict__.copy()
        for name in ("values", "columns"):
            if _shares(state[name]):
                state[name] = _own(state[name])
        return state

    def __repr__(self) -> str:
        return (
            f"CBSR(rows={self.num_rows}, k={self.k}, width={self.width}, dtype={self.dtype}, "
            f"device={self.device})"
        )


def _shares(tensor: Tensor) -> bool:
    """Whether the tensor's storage holds more than the tensor."""
    return tensor.untyped_storage().nbytes() > tensor.nbytes


def _own(tensor: Tensor) -> Tensor:
    """A copy with a storage of its own, without history."""
    copied = tensor.detach().clone(memory_format=torch.contiguous_format)
    return copied.requires_grad_(tensor.requires_grad)


def _copied(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """What copy.deepcopy makes of a tensor, without the rest of its storage."""
    if id(tensor) not in memo and tensor.is_leaf and _shares(tensor):
        memo[id(tensor)] = _own(tensor)
    found: Tensor = copy.deepcopy(tensor, memo)
    return found
