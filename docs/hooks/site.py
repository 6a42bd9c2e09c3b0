"""What the site shows beside docs/: pages of the repository, measured tables, flags, formulas."""

from __future__ import annotations

import contextlib
import html
import io
import re
import shlex
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
#: Where files from outside docs/ lie in the site.
INSIDE = "repository"
#: Pages and tables that docs/ links to; a link to a folder leads to the page named here.
SHOWN = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "examples/*",
    "recipes/*",
    "results/**/*.md",
    "results/**/*.jsonl",
    "results/**/*.png",
)

_TABLE = re.compile(r"^<!-- table: (.+?) -->$", re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
_BLOCK = re.compile(r"^\$\$(.+?)\$\$$", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Adds the repository's own pages and tables to the site."""
    for pattern in SHOWN:
        for path in sorted(ROOT.glob(pattern)):
            if path.is_file():
                name = f"{INSIDE}/{path.relative_to(ROOT).as_posix()}"
                files.append(File.generated(config, name, content=path.read_bytes()))
    for folder in sorted((ROOT / "results").iterdir()):
        if folder.is_dir() and not (folder / "README.md").exists():
            name = f"{INSIDE}/{folder.relative_to(ROOT).as_posix()}/index.md"
            files.append(File.generated(config, name, content=_listing(folder)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fills in tables and flags, sends links that leave docs/ to their copies, sets formulas."""
    if page.file.src_uri == "commands.md":
        markdown += _commands()
    markdown = _TABLE.sub(lambda match: _table(match[1]), markdown)
    markdown = markdown.replace("<!-- catalog -->", _catalog())
    base = ROOT / "docs" / page.file.src_uri
    if page.file.src_uri.startswith(f"{INSIDE}/"):
        base = ROOT / page.file.src_uri.removeprefix(f"{INSIDE}/")
    up = "../" * page.file.src_uri.count("/")

    def lead(match: re.Match[str]) -> str:
        target, anchor = (base.parent / match[1]).resolve(), match[2] or ""
        if not target.exists():
            return match[0]  # a page that only the site has, or a mistake that strict mode names
        inside = target.relative_to(ROOT).as_posix()
        if inside.startswith("docs/"):
            return f"]({up}{inside.removeprefix('docs/')}{anchor})"
        if target.is_dir():
            page = "README.md" if (target / "README.md").exists() else "index.md"
            inside = f"{inside}/{page}"
        return f"]({up}{INSIDE}/{inside}{anchor})"

    return _outside_fences(markdown, lambda text: _BLOCK.sub(_formula, _LINK.sub(lead, text)))


def _formula(match: re.Match[str]) -> str:
    """A formula as MathML, which browsers draw without a script."""
    return convert(" ".join(match[1].split()), display="block")


def _outside_fences(markdown: str, change: Any) -> str:
    parts, start = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [change(markdown[start : fence.start()]), fence[0]]
        start = fence.end()
    return "".join([*parts, change(markdown[start:])])


def _table(arguments: str) -> str:
    """The latest rows in results/, as ``maxk report table results`` prints them."""
    from maxk.cli.main import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main(["report", "table", str(ROOT / "results"), *shlex.split(arguments)])
    if code:
        raise ValueError(f"maxk report table results {arguments} failed")
    return printed.getvalue()


def _catalog() -> str:
    """The data sets that PyG and OGB bring, one a row."""
    from maxk.data.catalog import EXTRAS, catalog

    lines = ["| name | nodes | edges | features | classes | split | licence | through |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | --- | --- | --- |")
    for name, entry in catalog().items():
        sizes = (entry.nodes, entry.edges, entry.features, entry.classes)
        counts = ["unknown" if size is None else f"{size:,}" for size in sizes]
        told = [entry.split, entry.licence or "unknown", EXTRAS[entry.source][0]]
        lines.append(f"| {' | '.join([name, *counts, *map(_cell, told)])} |")
    return "\n".join(lines)


def _listing(folder: Path) -> str:
    names = sorted(p.name for p in folder.iterdir() if p.suffix in (".md", ".jsonl", ".png"))
    title = folder.relative_to(ROOT).as_posix()
    return f"# {title}\n\n" + "\n".join(f"- [{name}]({name})" for name in names) + "\n"


def _commands() -> str:
    """Every command with its flags, from the command line's own definitions."""
    import typer

    from maxk.cli.main import app

    root = typer.main.get_command(app)
    return "\n".join(_command(["maxk"], root))


def _command(words: list[str], command: Any) -> list[str]:
    inner = getattr(command, "commands", None)
    if inner is not None:
        return [line for name, child in inner.items() for line in _command([*words, name], child)]
    context = command.make_context(" ".join(words), [], resilient_parsing=True)
    usage = " ".join([*words, *command.collect_usage_pieces(context)])
    lines = ["", f"## {' '.join(words)}", "", (command.help or "").strip(), ""]
    lines += ["```text", usage, "```", "", "| flag | what it does |", "| --- | --- |"]
    options = [p for p in command.params if p.param_type_name == "option"]
    for flags, text in filter(None, (p.get_help_record(context) for p in options)):
        told = " ".join(text.split()).replace("[", "\\[")
        lines.append(f"| <code>{_cell(flags)}</code> | {_cell(told)} |")
    return lines


def _cell(text: str) -> str:
    """Text that no table takes for the end of a cell."""
    return html.escape(text, quote=False).replace("|", "&#124;")
