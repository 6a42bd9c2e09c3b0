"""What a user installs: the wheel and the source archive, built and used away from the checkout."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "maxk"


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(source: Path, out: Path, kind: str) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", out, cwd=source)
    (made,) = out.iterdir()
    return made


def package_files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    files = {
        str(path.relative_to(ROOT / "src"))
        for path in SOURCE.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    assert package_files(wheel) == files
    kinds = {Path(name).suffix for name in files}
    assert kinds == {".py", ".cu", ".cuh", ".toml", ".typed"}
    assert wheel.name.endswith("-py3-none-any.whl"), "nothing in it is compiled"


def test_the_source_archive_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    archive = build(ROOT, tmp_path / "sdist", "sdist")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    again = build(unpacked, tmp_path / "again", "wheel")
    assert package_files(again) == package_files(wheel)
    for name in ("tests/conftest.py", "tools", "recipes", "README.md", "LICENSE", "Makefile"):
        assert (unpacked / name).exists(), f"the source archive lacks {name}"


def test_the_wheel_works_in_a_fresh_environment_without_a_compiler(
    wheel: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "fresh", with_pip=False)
    python = tmp_path / "fresh" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index",
        wheel, cwd=tmp_path)  # fmt: skip
    # Its dependencies are those of this environment; a .pth file inside one of its folders, as an
    # editable install has, is not followed.
    (site,) = (tmp_path / "fresh").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    # Nothing can be found by name here, a compiler least of all.
    bare = {"PATH": str(tmp_path / "nothing"), "HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    code = (
        "import maxk, torch; from maxk.device.kernel import _read; from pathlib import Path;"
        "home = Path(maxk.__file__).parent;"
        "graph = maxk.Graph.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 0]]));"
        "model = maxk.nn.GraphSAGE(4, 8, 1, 2, k=2);"
        "print(home)\n"
        "with maxk.implementation('reference'):\n"
        "    print(tuple(model(torch.ones(3, 4), graph).shape))\n"
        "print(len(_read(home / 'ops/spgemm/kernel.cu')[0]) > 0)"
    )
    shown = run(python, "-c", code, cwd=tmp_path, env=bare).splitlines()
    assert shown == [str(site / "maxk"), "(3, 2)", "True"]
    command = tmp_path / "fresh" / "bin" / "maxk"
    assert "Planetoid" in run(command, "data", "show", "cora", cwd=tmp_path, env=bare)
    assert run(command, "--version", cwd=tmp_path, env=bare).startswith("maxk ")
