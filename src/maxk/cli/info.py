"""``maxk info``: what runs here and what is broken, in words or as JSON for a bug report."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer


def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Show versions, devices, which implementation runs and why, and the cure of what is broken."""
    from maxk.measure.environment import environment
    from maxk.measure.install import look, problems
    from maxk.ops.dispatch import survey
    from maxk.train.setup import resolve_device

    install = look()
    facts = {
        **environment(resolve_device("auto")),
        "operations": survey(),
        "caches": {"cpu": _folder(install.cpu_cache), "cuda": _folder(install.cuda_cache)},
        "problems": [asdict(problem) for problem in problems(install)],
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return 0
    _print(facts)
    return 0


def _folder(folder: Path | None) -> dict[str, Any]:
    from maxk.device.caches import cache_error

    error = cache_error(folder)
    return {"folder": None if folder is None else str(folder), "writable": error is None}


def _print(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from maxk.cli.display import say, size

    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    gpus = [
        f"{g['name']}, capability {g['capability']}, {size(g['memory'])}" for g in facts["gpus"]
    ]
    memory = size(facts["memory"]) if facts["memory"] else "memory unknown"
    rows = {
        "maxk": f"{facts['maxk']}, commit {facts['commit']}",
        "python": f"{facts['python']}, {facts['system']}",
        "torch": f"{facts['torch']}, CUDA {facts['cuda'] or 'none'}"
        + (f", driver {facts['driver']}" if facts["driver"] else ""),
        "packages": packages,
        "cpu": f"{facts['machine']}, {facts['cores']} cores, {facts['threads']} threads, {memory}",
        "gpu": "; ".join(gpus) or "none",
        "kernels": "; ".join(
            f"{name} in {cache['folder'] or 'no folder'}, "
            + ("can be written" if cache["writable"] else "cannot be written")
            for name, cache in facts["caches"].items()
        ),
    }
    console = Console()
    table = Table(show_header=False, box=None)
    for name, text in rows.items():
        table.add_row(name, text)
    console.print(table, markup=False, highlight=False)
    operations = Table("operation", "device", "implementation", "why", box=None)
    for row in facts["operations"]:
        operations.add_row(row["op"], row["device"], row["implementation"], row["reason"])
    console.print()
    console.print(operations, markup=False, highlight=False)
    console.print()
    if not facts["problems"]:
        console.print("no problems found")
    for problem in facts["problems"]:
        say(console, f"problem: {problem['what']}")
        say(console, f"   cure: {problem['cure']}")
