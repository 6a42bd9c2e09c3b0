"""The rules of the house, read from the source: who may import whom, and from where."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from maxk.ops.dispatch import OPERATIONS

SOURCE = Path(__file__).resolve().parents[1] / "src" / "maxk"
ROAD = [
    "core", "device", "graph", "cbsr", "ops", "nn", "interop", "data", "measure", "train", "bench",
    "cli",
]  # fmt: skip
OPTIONAL = {"torch_geometric", "dgl", "ogb", "matplotlib", "networkx", "cuda", "torch_sparse"}
HEAVY = {"numba", "llvmlite", "scipy", "sklearn"}
# The files that exist to hold numba code; they are imported when a CPU operation first runs.
NUMBA_FILES = {
    *(f"device/{name}.py" for name in ("cpu", "cpu_cache", "cpu_threads")),
    *(f"ops/{op}/cpu.py" for op in OPERATIONS),
}

FILES = sorted(SOURCE.rglob("*.py"))
IDS = [str(path.relative_to(SOURCE)) for path in FILES]


def imports(path: Path) -> list[tuple[str, bool]]:
    """(module, at top level) of every import in a file, type-checking blocks included."""
    tree = ast.parse(path.read_text())
    inner = {
        id(node)
        for scope in ast.walk(tree)
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(scope)
    }
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
        for node in ast.walk(block)
    }
    found = []
    for node in ast.walk(tree):
        top = id(node) not in inner and id(node) not in typing_only
        if isinstance(node, ast.Import):
            found += [(alias.name, top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.append((node.module or "", top))
    return found


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_the_road_names_every_room():
    rooms = {p.name for p in SOURCE.iterdir() if p.is_dir() and any(p.rglob("*.py"))} | {"cbsr"}
    assert rooms <= set(ROAD)


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_imports_go_one_way(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    if parts[0] not in ROAD:  # the root and __main__ open the doors
        return
    here = ROAD.index(parts[0])
    for module, _ in imports(path):
        if module.split(".")[0] == "maxk":
            assert module != "maxk", f"{path.name} imports the package root"
            assert ROAD.index(room(module)) <= here, f"{parts[0]} must not import {module}"


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_optional_and_heavy_libraries_are_imported_inside_functions(path):
    allowed = HEAVY if str(path.relative_to(SOURCE)) in NUMBA_FILES else set()
    for module, top in imports(path):
        name = module.split(".")[0]
        assert not (top and name in OPTIONAL | HEAVY - allowed), f"{path}: {module} at top level"


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_the_environment_is_read_in_one_place(path):
    if path.relative_to(SOURCE) == Path("core/settings.py"):
        return
    text = path.read_text()
    assert "os.environ" not in text
    assert "getenv" not in text


def test_every_operation_has_the_same_files():
    wanted = {"__init__.py", "reference.py", "cpu.py", "cuda.py"}
    for op in OPERATIONS:
        assert wanted <= {p.name for p in (SOURCE / "ops" / op).iterdir()}, op


@pytest.mark.parametrize(("statement", "absent"), [
    ("import maxk", {"torch", "numba", "numpy", "scipy", "sklearn"}),
    ("import maxk; maxk.Graph, maxk.maxk, maxk.nn", HEAVY | OPTIONAL - {"cuda"}),
])  # fmt: skip
def test_imports_cost_nothing_they_need_not(statement, absent):
    code = f"import sys; {statement}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not absent & set(loaded)


def test_no_cuda_context_at_import():
    code = "import maxk; maxk.nn, maxk.aggregate; import torch; print(torch.cuda.is_initialized())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_numba_keeps_nothing_by_itself(path):
    """Its own cache mixes up the entries of two processes; ``kernel`` and ``helper`` have ours."""
    assert not re.search(r"\bnjit\(.*cache|\bjit\(.*cache", path.read_text())
