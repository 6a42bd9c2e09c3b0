"""The data sets that other libraries provide, as a table of facts."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from maxk.core.errors import DataError

#: Data sets that need no file, and where they come from.
BUILT_IN = {"digits": "scikit-learn", "synthetic": "a generator"}
#: What to install before a source can be read.
EXTRAS = {"pyg": ("torch_geometric", "maxk[pyg]"), "ogb": ("ogb", "maxk[data]")}


@dataclass(frozen=True)
class Entry:
    """What is known of one data set before it is loaded; None where no source says.

    Attributes:
        name: What ``--dataset`` takes.
        source: The library that loads it.
        loader: The class of that library.
        folder: Where its files are, below the data folder.
        files: The files there.
        page: Where they are published.
        split: What the source says about the split.
        metric: What it is scored by.
        nodes: N.
        edges: E, directed.
        features: F.
        classes: C.
        multi_label: Whether a node may carry several labels.
        licence: Of the data, or of the repository that publishes them.
        archive: Where the class looks for the one packed file of all, below the data folder.
        sha256: Of this archive.
        download: Bytes to fetch, about.
        pickles: Whether the files are Python pickles, which can run code when they are read.
        remark: A sentence for whoever trains on it.
        arguments: What the class is called with, after the folder.
        parts: The class's splits where each holds whole graphs, which become one graph.
    """

    name: str
    source: Literal["pyg", "ogb"]
    loader: str
    folder: str
    files: tuple[str, ...]
    page: str
    split: str
    metric: str
    nodes: int | None = None
    edges: int | None = None
    features: int | None = None
    classes: int | None = None
    multi_label: bool = False
    licence: str | None = None
    archive: str | None = None
    sha256: str | None = None
    download: int | None = None
    pickles: bool = False
    remark: str = ""
    arguments: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    parts: tuple[str, ...] = ()

    def missing(self, root: Path) -> list[str]:
        """Return the files that are not in the folder yet."""
        return [name for name in self.files if not (root / self.folder / name).is_file()]

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "arguments"}
        return {**plain, "arguments": dict(self.arguments)}


@cache
def catalog() -> Mapping[str, Entry]:
    """Return every data set of the catalog by its name.

    Example:
        >>> from maxk.data.catalog import catalog
        >>> catalog()["reddit"].classes
        41
    """
    text = Path(__file__).with_name("catalog.toml").read_text(encoding="utf-8")
    entries = {}
    for name, facts in tomllib.loads(text).items():
        row = {**facts, "loader": facts["class"], "files": tuple(facts["files"])}
        row["parts"] = tuple(facts.get("parts", ()))
        row["arguments"] = MappingProxyType(facts.get("arguments", {}))
        del row["class"]
        entries[name] = Entry(name=name, **row)
    return MappingProxyType(entries)


def find(name: str) -> Entry | None:
    """Return the data set of a name, where ``Amazon_Photo`` is ``amazon-photo``, or None."""
    return catalog().get(name.lower().replace("_", "-"))


def nearest(name: str) -> str | None:
    """Return the name of the catalog that a misspelt one may mean, or None."""
    wanted = name.lower().replace("_", "-")
    near = difflib.get_close_matches(wanted, catalog(), n=1, cutoff=0.6)
    return near[0] if near else None


def needs(entry: Entry) -> DataError:
    """The error for a data set whose library is not installed."""
    module, extra = EXTRAS[entry.source]
    return DataError(
        f"{entry.name} is loaded by the package {module}, which is not installed here; "
        f'type: pip install "{extra}"'
    )
