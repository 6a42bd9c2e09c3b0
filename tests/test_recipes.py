from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from maxk.data.catalog import find
from maxk.train.config import TrainConfig, flag

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.toml"))
PAPER = [path for path in RECIPES if path.stem.startswith("paper-")]


def test_there_are_recipes() -> None:
    stems = {path.stem for path in RECIPES}
    assert {"digits-sage", "cora-gcn", "tolokers-gin"} <= stems
    graphs = ("reddit", "ogbn-products", "ogbn-proteins", "yelp", "flickr")
    assert {f"paper-{g}-{m}" for g in graphs for m in ("sage", "gcn", "gin")} <= stems


@pytest.mark.parametrize("path", PAPER, ids=lambda path: path.stem)
def test_the_catalog_has_the_data_sets_of_the_paper(path: Path) -> None:
    assert find(TrainConfig.from_toml(path).dataset) is not None


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_what_its_name_says(path: Path) -> None:
    config = TrainConfig.from_toml(path)
    assert path.stem.removeprefix("paper-") == f"{config.dataset}-{config.model}"
    assert path.read_text(encoding="utf-8").startswith("# ")
    # Where a run goes, and the machine it runs on, are the caller's to say.
    of_the_caller = {flag(f.name)[2:] for f in fields(TrainConfig) if "per_call" in f.metadata}
    assert not (of_the_caller | {"device"}) & set(tomllib.loads(path.read_text(encoding="utf-8")))
