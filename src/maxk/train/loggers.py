"""Where the numbers of each epoch go beside the run folder: CSV, TensorBoard, or a logger of yours.

A logger has the three methods of Lightning's loggers that matter here, so those work as well.
"""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from maxk.core.errors import CheckpointError, ConfigError
from maxk.train.checkpoint import cannot_write, write_file

CSV_FILE = "metrics.csv"
TENSORBOARD_FOLDER = "tensorboard"


class Logger(Protocol):
    """What :class:`~maxk.train.loop.Trainer` tells of its epochs."""

    def log_hyperparams(self, params: dict[str, Any]) -> object:
        """Takes the settings, once, before the first epoch that is logged."""

    def log_metrics(self, metrics: dict[str, float], step: int) -> object:
        """Takes what an epoch gave; ``step`` is the epoch, counted from 1."""

    def finalize(self, status: str) -> object:
        """Ends: ``"success"`` when training is done, ``"failed"`` when it broke off."""


class CSVLogger:
    """One line an epoch in a CSV file, complete after every epoch.

    Epochs that a continued run trains again replace their old lines.

    Args:
        path: The file; its folder must be there.

    Raises:
        CheckpointError: the file cannot be written.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "metrics.csv"
        >>> logger = CSVLogger(path)
        >>> logger.log_metrics({"loss": 0.5, "val_accuracy": 0.75}, step=1)
        >>> print(path.read_text(), end="")
        epoch,loss,val_accuracy
        1,0.5,0.75
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._columns: list[str] | None = None

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        """Does nothing: the settings have no place in the table."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Adds the line of an epoch."""
        row: dict[str, Any] = {"epoch": step, **metrics}
        old = self._columns
        if old is None or not set(row) <= set(old):
            # At the start, and when a column comes late: only some epochs on a GPU are split into
            # their parts.
            rows = [known for known in self._read() if int(known["epoch"]) < step]
            self._columns = list(dict.fromkeys(name for each in (*rows, row) for name in each))
            write_file(self.path, self._text(rows, head=True).encode())
        try:
            with self.path.open("a", newline="", encoding="utf-8") as file:
                file.write(self._text([row]))
        except OSError as error:
            raise CheckpointError(cannot_write(self.path, error)) from error

    def finalize(self, status: str) -> None:
        """Does nothing: the file is complete after every epoch."""

    def _read(self) -> list[dict[str, Any]]:
        if not self.path.is_file():
            return []
        with self.path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def _text(self, rows: list[dict[str, Any]], *, head: bool = False) -> str:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns or [], lineterminator="\n")
        if head:
            writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()


class TensorBoardLogger:
    """Curves for ``tensorboard --logdir``; needs the package tensorboard.

    Args:
        folder: Where the event files go.

    Raises:
        ConfigError: tensorboard is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        check(["tensorboard"])
        self.folder = Path(folder)
        self._params: dict[str, Any] = {}
        self._writer: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # A copy opens its own file of events; the writer's thread belongs to one process.
        return {**self.__dict__, "_writer": None}

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        """Keeps the settings; they are written as a table with the first epoch."""
        self._params = dict(params)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Adds a point to the curve of each metric."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            # What an earlier try wrote of this epoch and later ones is taken back.
            self._writer = SummaryWriter(str(self.folder), purge_step=step)
            lines = [f"| {name} | {value} |" for name, value in self._params.items()]
            if lines:
                table = "\n".join(["| setting | value |", "| --- | --- |", *lines])
                self._writer.add_text("settings", table, step)
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def finalize(self, status: str) -> None:
        """Writes what is not on disk yet and closes the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def check(kinds: Iterable[str]) -> None:
    """Checks that the packages of these loggers are installed.

    Raises:
        ConfigError: one is not; the message says what to type.
    """
    if "tensorboard" in kinds and importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            "--log tensorboard needs the package tensorboard, which is not installed here; "
            'type: pip install "maxk[track]"'
        )


def open_loggers(kinds: Iterable[str], folder: Path) -> list[Logger]:
    """Returns the loggers of a run folder.

    Args:
        kinds: ``"csv"`` and ``"tensorboard"``, in any number.
        folder: Where their files go.
    """
    made: list[Logger] = []
    for kind in dict.fromkeys(kinds):
        if kind == "csv":
            made.append(CSVLogger(folder / CSV_FILE))
        else:
            made.append(TensorBoardLogger(folder / TENSORBOARD_FOLDER))
    return made
