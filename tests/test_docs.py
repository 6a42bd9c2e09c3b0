"""The site builds without a warning, and what its pages show runs as it stands there."""

from __future__ import annotations

import contextlib
import doctest
import io
import itertools
import pkgutil
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from maxk.cli.main import app, main
from maxk.cli.train import configure

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "recipes/README.md")),
    *sorted((ROOT / "results").rglob("README.md")),
]
NAMES = [str(path.relative_to(ROOT)) for path in PAGES]

FENCE = re.compile(r"^(`{3,})([^\n`]*)\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
LANGUAGES = {"python", "sh", "output", "text", "toml"}
# The parts of a shell line behind which another program reads or another command begins.
SHELL = {"|", "&&", ";", ">", ">>"}
PLACEHOLDERS = re.compile(r"\b(?:path/to|PATH|NAME|RUN|A\.jsonl)\b")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, its text and the line it begins on."""

    language: str
    text: str
    line: int


def blocks(path: Path) -> list[Block]:
    page = path.read_text(encoding="utf-8")
    return [
        Block(fence[2].strip(), fence[3], page.count("\n", 0, fence.start()) + 2)
        for fence in FENCE.finditer(page)
    ]


def expected(found: list[Block]) -> Iterator[tuple[Block, str | None]]:
    """Each block that may run, with the output shown right behind it; ``...`` is any text."""
    for block, after in itertools.zip_longest(found, found[1:]):
        shown = after.text if after is not None and after.language == "output" else None
        if block.language in ("python", "sh"):
            yield block, shown


def commands(block: Block) -> list[list[str]]:
    """The commands of a shell block, comments and what follows a pipe left out."""
    lines = block.text.replace("\\\n", " ").splitlines()
    found = [shlex.split(line, comments=True) for line in lines if line.strip()]
    return [words for words in found if words]


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def pages_with(language: str) -> list[Path]:
    return [path for path in PAGES if any(b.language == language for b in blocks(path))]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    config = load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path / "site"))
    build(config)
    for page in ("index", "tour", "api", "commands", "repository/CONTRIBUTING"):
        assert (tmp_path / "site" / f"{page}.html").stat().st_size > 1000
    api = (tmp_path / "site" / "api.html").read_text(encoding="utf-8")
    assert "<math" in api
    # What stays when a construct of reStructuredText is not turned into Markdown.
    assert not re.findall(r":(?:func|class|meth|attr|mod|math|sup):|\.\. math::|&gt;`_", api)


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_every_block_names_a_language_that_is_tested(path: Path) -> None:
    assert {block.language for block in blocks(path)} <= LANGUAGES
    text = path.read_text(encoding="utf-8")
    assert len(re.findall(r"^\s*`{3,}", text, re.MULTILINE)) == 2 * len(blocks(path))


@pytest.fixture
def torch_settings() -> Iterator[None]:
    """Puts back what a page may change for the whole process."""
    precision = torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(deterministic)


@pytest.mark.usefixtures("torch_settings")
@pytest.mark.parametrize("path", pages_with("python"), ids=name)
def test_the_snippets_of_a_page_run_one_after_the_other(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as for a script in that folder
    names: dict[str, Any] = {"__name__": "__main__"}
    for block, shown in expected(blocks(path)):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            if block.language == "python":
                # Line numbers of a traceback are those of the page.
                code = compile("\n" * (block.line - 1) + block.text, str(path), "exec")
                exec(code, names)
            elif shown is not None:
                refused = shown.startswith("maxk: ")
                for words in commands(block):
                    assert main(words[1:]) == (2 if refused else 0)
        if shown is not None:
            got = printed.getvalue()
            same = doctest.OutputChecker().check_output(shown, got, doctest.ELLIPSIS)
            assert same, f"{name(path)}:{block.line} shows\n{shown}but prints\n{got}"


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_every_name_of_the_library_in_the_text_exists(path: Path) -> None:
    for dotted in re.findall(r"`(maxk(?:\.\w+)+)", prose(path)):
        pkgutil.resolve_name(dotted)


def flags_of(command: Any) -> set[str]:
    inner = getattr(command, "commands", {}).values()
    own = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)}
    return own.union(*(flags_of(child) for child in inner))


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_every_flag_in_the_text_exists(path: Path) -> None:
    text = prose(path)
    if path.name == "from-paper.md":
        # The first column of its tables is about another program.
        text = re.sub(r"^\|[^|]*\|", "|", text, flags=re.MULTILINE)
    shown = set()
    for code in re.findall(r"`([^`]+)`", text):
        flags = FLAG.findall(code)
        if code.startswith("python "):
            # A tool of this repository or its tests, with flags of their own.
            tool = re.search(r"tools/\w+\.py", code)
            source = (ROOT / (tool[0] if tool else "tests/conftest.py")).read_text()
            assert [flag for flag in flags if f'"{flag}"' not in source] == [], code
        else:
            shown.update(flags)
    assert shown <= flags_of(typer.main.get_command(app)) | {"--help"}


SHOWN = [
    pytest.param(words, id=f"{name(path)}:{block.line}: {' '.join(words)}")
    for path in PAGES
    for block, shown in expected(blocks(path))
    if block.language == "sh" and shown is None  # the others run
    for words in commands(block)
]


@pytest.mark.parametrize("words", SHOWN)
def test_every_shell_command_exists_with_its_flags(words: list[str]) -> None:
    ends = [i for i, word in enumerate(words) if word in SHELL]
    words = words[: min(ends, default=len(words))]
    while "=" in words[0]:  # variables in front of a command
        words = words[1:]
    program, *arguments = words
    program = program.removeprefix(".venv/bin/")
    if program == "maxk":
        check_maxk(arguments)
    elif program == "make":
        rules = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{arguments[0]}:", rules, re.MULTILINE)
    elif program == "python":
        check_python(arguments)
    elif program == "pip":
        check_pip(arguments)
    elif program.startswith(".ci/"):
        assert f"{program} {arguments[0]} [" in (ROOT / program).read_text(encoding="utf-8")
    else:
        assert program in ("git", "cd", "export"), f"nothing checks {program}"


def leaves(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command without commands of its own, by its words."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
    else:
        for word, child in inner.items():
            yield from leaves(child, f"{path} {word}".strip())


def check_maxk(arguments: list[str]) -> None:
    """Lets the command line read the words as it would, up to the function that would run."""
    root: Any = typer.main.get_command(app)
    read: dict[str, dict[str, Any]] = {}
    for path, command in leaves(root):
        command.callback = lambda path=path, **given: read.update({path: given})
    root.main(list(arguments), prog_name="maxk", standalone_mode=False)
    ((path, given),) = read.items()
    if path != "train":
        return
    file = given.get("config")
    if file is not None and not PLACEHOLDERS.search(file):
        given["config"] = str(ROOT / file)
    elif file is not None:
        del given["config"]
    if given.get("resume") is None:
        configure(given)


def check_python(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        assert arguments[1] in ("venv", "maxk", "pytest")
        assert all((ROOT / word).exists() for word in arguments if word.startswith("tests/"))
    else:
        assert (ROOT / arguments[0]).is_file(), arguments[0]


def check_pip(arguments: list[str]) -> None:
    assert arguments[0] == "install"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    known = set(extras["project"]["optional-dependencies"])
    for word in arguments[1:]:
        if match := re.fullmatch(r"(?:maxk|\.)\[([\w,]+)\]", word):
            assert set(match[1].split(",")) <= known, word
