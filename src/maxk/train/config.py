"""The settings of a training run: dataclass field -> flag -> TOML key -> saved with the run.

This file imports no torch, so that ``maxk train --help`` and a wrong flag answer at once.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import inspect
import itertools
import json
import math
import re
import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from maxk.core.errors import ConfigError

_PER_CALL = {"per_call": True}  # belongs to one invocation, so it is not saved with the run


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides a training run.

    A field ``weight_decay`` is the flag ``--weight-decay`` and the TOML key ``weight-decay``; the
    text under each field is the flag's help. Values are checked when the object is made, before
    any data is loaded.

    Raises:
        ConfigError: a value has the wrong type, lies outside its range or contradicts another.

    Example:
        >>> TrainConfig(hidden=64, k=8).layers
        3
    """

    dataset: str = "digits"
    """Data set: a name shown by 'maxk data list', or the path of a file."""
    model: Literal["sage", "gcn", "gin"] = "sage"
    """Kind of graph layer."""
    nonlinearity: Literal["maxk", "relu", "maxk-grouped", "fatrelu", "dropout-relu"] = "maxk"
    """MaxK, or in the same model ReLU as the dense baseline, or another sparsity beside them."""
    k: int = 32
    """Entries that MaxK keeps of each hidden row; the others but relu keep as many on average."""
    anneal: int = 0
    """Epochs in which k falls by halves from --hidden to --k; the best epoch is a later one."""
    groups: int = 1
    """Blocks of columns over which maxk-grouped spreads its k."""
    threshold: float | None = None
    """What fatrelu lets pass must exceed this; by default what lets k of a row pass on average."""
    hidden: int = 256
    """Width of the hidden rows."""
    layers: int = 3
    """Number of graph layers."""
    epochs: int = 200
    """Full-batch training steps."""
    lr: float = 3e-3
    """Learning rate of Adam."""
    weight_decay: float = 0.0
    """L2 penalty added to the gradient by Adam."""
    dropout: float = 0.5
    """Probability that an entry behind the nonlinearity is dropped in training."""
    norm: Literal["layer", "batch", "none"] = "layer"
    """Normalisation after each aggregation."""
    residual: bool = False
    """Add each layer's input to its result."""
    self_loops: bool = False
    """Add the self-loops that the graph lacks."""
    undirected: bool = False
    """Add the reverse of every edge that lacks it; each edge then counts once."""
    features: str | None = None
    """File of node features, for a data set whose own file holds none."""
    labels: str | None = None
    """File of node labels, for a data set whose own file holds none."""
    scaling: Literal["none", "row", "standard"] = "none"
    """Features as stored, each row divided by its absolute sum, or each column standardised."""
    split: int | Literal["seed"] | None = None
    """Split to use where a file ships several: a number, or 'seed' for the run's own seed."""
    seed: int = 0
    """Seed of initialisation and dropout, and of the split where one must be made."""
    seeds: int = 1
    """Number of runs, with seeds counted up from --seed; their mean and spread are reported."""
    patience: int = 0
    """Stop after this many epochs without a better validation score; 0 never stops early."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N; auto takes a GPU where there is one."""
    precision: Literal["highest", "high", "medium"] = "high"
    """Precision of float32 products, in the words of torch.set_float32_matmul_precision."""
    compile: bool = False
    """Run the model through torch.compile."""
    cuda_graph: bool = True
    """On a GPU, replay the training step from a CUDA graph; the results stay the same."""
    deterministic: bool = False
    """Use repeatable algorithms only; an operation that has none is an error."""
    log: tuple[Literal["csv", "tensorboard"], ...] = ()
    """Also write each epoch to metrics.csv, or as curves for TensorBoard; may be repeated."""
    out: str | None = field(default=None, metadata=_PER_CALL)
    """Folder for the run; by default a new one under runs/."""
    resume: str | None = field(default=None, metadata=_PER_CALL)
    """Continue the run saved in this folder, with its own settings."""
    other_data: bool = field(default=False, metadata=_PER_CALL)
    """Continue also where the data are not those that the run was trained on."""
    quiet: bool = field(default=False, metadata=_PER_CALL)
    """Print the result only."""

    def __post_init__(self) -> None:
        for name, kind in field_types().items():
            value = getattr(self, name)
            accepted = _accept(value, kind)
            if accepted is _REFUSED:
                raise ConfigError(f"{flag(name)} must be {_describe(kind)}, got {value!r}")
            object.__setattr__(self, name, accepted)
        self._check_ranges()

    def _check_ranges(self) -> None:
        for name, low in (
            ("hidden", 1),
            ("groups", 1),
            ("layers", 1),
            ("epochs", 1),
            ("seeds", 1),
            ("seed", 0),
            ("patience", 0),
            ("anneal", 0),
        ):
            value = getattr(self, name)
            if value < low:
                raise ConfigError(f"{flag(name)} must be at least {low}, got {value}")
        if self.seed + self.seeds > 2**63:
            raise ConfigError(f"--seed must be below 2^63, got {self.seed}")
        # The baseline has no k, so a narrow ReLU model need not name one.
        if self.nonlinearity != "relu" and not 1 <= self.k <= self.hidden:
            raise ConfigError(
                f"--k must lie in [1, {self.hidden}] (--hidden is {self.hidden}), got {self.k}"
            )
        if self.anneal and self.nonlinearity not in ("maxk", "relu"):
            raise ConfigError(
                f"--anneal is for --nonlinearity maxk, got {self.nonlinearity}; leave it out"
            )
        if self.anneal >= self.epochs:
            raise ConfigError(
                f"--anneal must be below --epochs {self.epochs}, so that epochs are left in which "
                f"k is --k; got {self.anneal}"
            )
        common = math.gcd(self.k, self.hidden)
        if self.nonlinearity == "maxk-grouped" and common % self.groups:
            raise ConfigError(
                f"--groups must divide --k {self.k} and --hidden {self.hidden}, "
                f"got {self.groups}; the largest that does is {common}"
            )
        if self.threshold is not None and not 0 <= self.threshold < math.inf:
            raise ConfigError(f"--threshold must be at least 0 and finite, got {self.threshold:g}")
        if not 0 < self.lr < math.inf:
            raise ConfigError(f"--lr must be above 0 and finite, got {self.lr:g}")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(
                f"--weight-decay must be at least 0 and finite, got {self.weight_decay:g}"
            )
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"--dropout must lie in [0, 1), got {self.dropout:g}")
        if isinstance(self.split, int) and self.split < 0:
            raise ConfigError(f"--split must be at least 0, got {self.split}")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ConfigError(f"--device must be auto, cpu, cuda or cuda:N, got {self.device!r}")
        if not self.dataset:
            raise ConfigError("--dataset must name a data set or a file, got ''")

    def to_toml(self) -> str:
        """Returns the settings that decide the run as TOML; ``from_toml`` reads them back."""
        lines = []
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not None and "per_call" not in f.metadata:
                lines.append(f"{_key(f.name)} = {_toml_value(value)}")
        return "\n".join(lines) + "\n"

    @classmethod
    def from_toml(cls, path: str | Path, **overrides: object) -> TrainConfig:
        """Reads a TOML file; ``overrides`` (by field name) win over the file.

        Raises:
            ConfigError: the file is missing or no TOML, or a key or a value is wrong; the message
                names the file where it is the file's.
        """
        read: dict[str, Any] = read_toml(path)
        try:
            return cls(**{**read, **overrides})
        except ConfigError:
            try:
                cls(**read)
            except ConfigError as error:
                raise ConfigError(f"{path}: {error}") from None
            raise


def read_toml(path: str | Path) -> dict[str, object]:
    """Reads a TOML file of settings into field names and unchecked values.

    Raises:
        ConfigError: the file is missing, no TOML, or holds a key that is no setting.
    """
    path = Path(path)
    try:
        # A path saved with a run may hold bytes that are no text; an editor puts a mark in front.
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror}") from error
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        if any("\udc80" <= character <= "\udcff" for character in text):
            raise ConfigError(f"{path} is not a TOML file: it is not UTF-8 text") from error
        # No TOML, a number of thousands of digits, or thousands of brackets.
        raise ConfigError(f"{path} is not a TOML file: {error}") from error
    return from_keys(table, str(path))


def from_keys(table: Mapping[str, object], source: str) -> dict[str, object]:
    """Turns TOML keys into field names.

    Raises:
        ConfigError: a key is no setting; the message names the nearest one.
    """
    names = {_key(f.name): f.name for f in fields(TrainConfig)}
    for key in table:
        if key not in names:
            near = difflib.get_close_matches(key.replace("_", "-"), names, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(names)}"
            raise ConfigError(f"{source} has an unknown key {key!r}{hint}")
    return {names[key]: value for key, value in table.items()}


def flag(name: str) -> str:
    """Returns the flag of a field: ``weight_decay`` -> ``--weight-decay``."""
    return "--" + _key(name)


@cache
def field_types() -> dict[str, object]:
    """Returns the type of each field, in the order of the dataclass."""
    hints = get_type_hints(TrainConfig)
    return {f.name: hints[f.name] for f in fields(TrainConfig)}


@cache
def field_help() -> dict[str, str]:
    """Returns the text written under each field of the dataclass."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(TrainConfig)))
    body = tree.body[0].body  # type: ignore[attr-defined]
    found: dict[str, str] = {}
    for statement, following in itertools.pairwise(body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            found[statement.target.id] = inspect.cleandoc(str(following.value.value))
    return found


def repeats(kind: object) -> bool:
    """Whether a field of this type takes several values, as a flag that may be repeated."""
    return get_origin(kind) is tuple


def choices(kind: object) -> tuple[str, ...]:
    """Returns the words that a field of this type may take, empty where any value may stand."""
    kind = get_args(kind)[0] if repeats(kind) else kind
    return tuple(get_args(kind)) if get_origin(kind) is Literal else ()


def parse_flag(name: str, text: str) -> object:
    """Turns the text of a flag into the value of its field.

    Text that is not what the field holds is returned as it is: :class:`TrainConfig` refuses it
    with the same sentence as a value from a file.
    """
    kind = field_types()[name]
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    for number in (int, float):
        if number in kinds:
            with contextlib.suppress(ValueError):
                return number(text)
    return text


_REFUSED = object()


def _accept(value: object, kind: object) -> object:
    """Returns the value as its field holds it, or ``_REFUSED``."""
    if get_origin(kind) in (Union, UnionType):
        for member in get_args(kind):
            accepted = _accept(value, member)
            if accepted is not _REFUSED:
                return accepted
        return _REFUSED
    if repeats(kind):
        if not isinstance(value, list | tuple):
            return _REFUSED
        members = [_accept(member, get_args(kind)[0]) for member in value]
        return _REFUSED if _REFUSED in members else tuple(members)
    if words := choices(kind):
        return value if isinstance(value, str) and value in words else _REFUSED
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, bool):
        return _REFUSED
    return value if isinstance(value, kind) else _REFUSED  # type: ignore[arg-type]


def _describe(kind: object) -> str:
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_describe(m) for m in get_args(kind) if m is not type(None))
    if repeats(kind):
        return f"a list of {' or '.join(choices(kind))}"
    if words := choices(kind):
        return f"one of {', '.join(words)}" if len(words) > 1 else repr(words[0])
    names: dict[object, str] = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a text",
    }
    return names[kind]


def _key(name: str) -> str:
    return name.replace("_", "-")


def _toml_value(value: object) -> str:
    # A JSON string without \u escapes is a TOML string; numbers and booleans read alike.
    return json.dumps(value, ensure_ascii=False)
