"""A data folder without a network, and what tests ask of a loaded data set."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from maxk.core.errors import DataError
from maxk.core.settings import settings
from maxk.data.catalog import catalog
from maxk.data.dataset import Dataset
from maxk.data.load import load


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data folder on a machine without a network."""

    def unreachable(*args: object, **kwargs: object) -> object:
        raise OSError("no network here")

    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    monkeypatch.setenv("MAXK_DATA_DIR", str(tmp_path))
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


def known(monkeypatch: pytest.MonkeyPatch, name: str, archive: Path) -> None:
    """Makes the catalog know an archive of the tests in place of the published one."""
    entry = replace(catalog()[name], sha256=hashlib.sha256(archive.read_bytes()).hexdigest())
    monkeypatch.setattr("maxk.data.load.find", {name: entry}.get)


def edges(data: Dataset) -> set[tuple[int, int]]:
    """The edges as (source, target)."""
    return set(zip(*data.graph.edge_index().tolist(), strict=True))


def masks(data: Dataset) -> list[list[int]]:
    """The nodes of the three masks."""
    parts = (data.train_mask, data.val_mask, data.test_mask)
    return [mask.nonzero()[:, 0].tolist() for mask in parts]


def refused(name: str, *parts: str) -> None:
    """A data set does not load, and one line says all of these."""
    with pytest.raises(DataError) as caught:
        load(name)
    for part in parts:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)
