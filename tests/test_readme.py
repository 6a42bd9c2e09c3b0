"""What the front page and the docstrings show runs as it stands there."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import maxk
from maxk.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def modules_with_examples() -> list[str]:
    source = Path(maxk.__file__).parent
    found = []
    for module in pkgutil.walk_packages([str(source)], prefix="maxk."):
        path = source.parent / Path(*module.name.split("."))
        path = path / "__init__.py" if module.ispkg else path.with_suffix(".py")
        if ">>> " in path.read_text(encoding="utf-8"):
            found.append(module.name)
    return found


@pytest.mark.parametrize("name", modules_with_examples())
def test_docstring_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_front_page_snippets_run() -> None:
    pytest.importorskip("torch_geometric")
    names: dict[str, object] = {}
    for snippet in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL):
        exec(compile(snippet, "README.md", "exec"), names)
    assert tuple(names["logits"].shape) == (3, 10)  # type: ignore[attr-defined]


@pytest.mark.parametrize("line", re.findall(r"^maxk (?!bench|profile).*$", README, flags=re.M))
def test_the_front_page_commands_exist(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = line.split("#")[0].split()[1:]
    command = [word for word in words[:2] if not word.startswith("-") and "/" not in word]
    flags = {word for word in words if word.startswith("--")}
    assert main([*command, "--help"]) == 0
    shown = capsys.readouterr().out
    for flag in flags:
        assert flag in shown


def test_every_link_of_the_front_page_leads_somewhere() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
