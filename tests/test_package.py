"""What a user installs: the wheel and the source archive, built and used away from the checkout."""

from __future__ import annotations

import functools
import importlib.metadata as metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
    for name in (
        "tests/conftest.py",
        "tools",
        "recipes",
        "README.md",
        "LICENSE",
        "Makefile",
        "lock.txt",
    ):
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


PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def environment(python: str) -> dict[str, str]:
    """The variables of markers on a Linux machine."""
    return {
        "python_version": python,
        "python_full_version": f"{python}.8",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "extra": "",
    }


@functools.cache
def lock() -> list[Requirement]:
    lines = (ROOT / "lock.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if not line.startswith("#")]


def locked(python: str) -> dict[str, str]:
    """name -> version on one Python; fails where a name has two."""
    found: dict[str, str] = {}
    for pin in lock():
        if pin.marker is None or pin.marker.evaluate(environment(python)):
            name = canonicalize_name(pin.name)
            assert name not in found, f"{name} has two versions on Python {python}"
            (exact,) = pin.specifier
            found[name] = exact.version
    return found


def asked() -> list[Requirement]:
    """Everything that pyproject.toml names, in every extra and for the build."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    extras = project["project"]["optional-dependencies"].values()
    lines = [*project["project"]["dependencies"], *(need for extra in extras for need in extra)]
    needs = [Requirement(line) for line in (*lines, *project["build-system"]["requires"])]
    return [need for need in needs if need.name != "maxk"]


def test_the_lock_names_exact_versions_and_no_host() -> None:
    assert "/" not in (ROOT / "lock.txt").read_text()
    for pin in lock():
        assert pin.url is None
        assert [each.operator for each in pin.specifier] == ["=="], str(pin)


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_satisfies_what_the_package_asks_for(python: str) -> None:
    versions = locked(python)
    for need in asked():
        if need.marker is None or need.marker.evaluate(environment(python)):
            version = versions[canonicalize_name(need.name)]
            assert need.specifier.contains(version), f"{need}: the lock has {version}"


def test_the_lock_covers_what_the_dependencies_ask_for() -> None:
    versions = locked(f"{sys.version_info.major}.{sys.version_info.minor}")
    waiting, seen = asked(), set()
    while waiting:
        need = waiting.pop()
        name = canonicalize_name(need.name)
        if (name, *need.extras) in seen:
            continue
        seen.add((name, *need.extras))
        assert name in versions, f"lock.txt lacks {name}"
        assert need.specifier.contains(versions[name], prereleases=True), str(need)
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for line in lines:
            wanted = Requirement(line)
            if wanted.marker is None or any(
                wanted.marker.evaluate({"extra": extra}) for extra in ("", *need.extras)
            ):
                waiting.append(wanted)
    assert len(seen) > 60, "the test extra is not installed here"


def made(*words: str) -> list[str]:
    """The lines that make would run, in a checkout where nothing is installed yet."""
    if shutil.which("make") is None:
        pytest.skip("needs make")
    # The make that runs this suite hands its own words down in these.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    shown = run("make", "--dry-run", "--always-make", *words, cwd=ROOT, env=ours)
    return shown.replace("\\\n", " ").splitlines()


@pytest.mark.parametrize("command", ["demo", "test", "check", "docs", "format"])
def test_each_command_installs_from_the_lock(command: str) -> None:
    installs = [line for line in made(command) if " pip install " in line]
    assert installs
    for line in installs:
        assert "--constraint lock.txt" in line
    # An isolated build would take the newest hatchling.
    assert all("--no-build-isolation" in line for line in installs if "--editable" in line)
    assert not [line for line in installs if "--index-url" in line]


def test_one_word_takes_the_cpu_build_of_torch() -> None:
    lines = made("demo", "TORCH=cpu")
    (first, *_) = [line for line in lines if " pip install " in line]
    assert first.endswith(f"/whl/cpu torch=={locked('3.11')['torch']}")
    assert "--no-deps --index-url https://download.pytorch.org/" in first
    wrong = subprocess.run(
        ["make", "-n", "demo", "TORCH=gpu"], cwd=ROOT, capture_output=True, text=True
    )
    assert wrong.returncode == 2
    assert "TORCH must be cpu, or left out for the build that pip chooses; got 'gpu'" in (
        wrong.stderr
    )


def test_the_newest_releases_run_in_an_environment_of_their_own() -> None:
    lines = made("newest", "HOLD=torch==2.13.0", "TESTS=tests/nn")
    (install,) = [line for line in lines if " pip install " in line]
    assert "lock.txt" not in install
    assert install.endswith("--upgrade-strategy eager --editable '.[test]' torch==2.13.0")
    ran = [line for line in lines if line.startswith(".venv")]
    assert all(line.startswith(".venv-newest/bin/") for line in ran)
    assert lines[-1].endswith(" tests/nn")


def lock_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock_tool", ROOT / "tools" / "lock.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_downloaded_is_said_before_pip_starts() -> None:
    lines = made("demo")
    said = next(i for i, line in enumerate(lines) if "lock.py announce demo" in line)
    assert said < next(i for i, line in enumerate(lines) if " pip install " in line)
    tool = lock_tool()
    assert tuple(tool.PYTHONS) == PYTHONS
    assert locked("3.11")["torch"] == tool.TORCH
    plain = tool.announcement("demo", None)
    number, unit = re.search(r"up to (\d\.\d) (GB) for torch", plain).groups()
    assert 2 < float(number) < 4 and unit == "GB"
    assert "'make demo TORCH=cpu' takes its CPU build, 192 MB" in plain
    assert "GB" not in tool.announcement("test", None, cpu=True)
    there = tool.announcement("test", f"{tool.TORCH}+cpu")
    assert there.endswith(f"torch {tool.TORCH}+cpu is there already")
    assert "there already" not in tool.announcement("test", "2.1.0")


def test_the_front_page_tells_the_sizes_of_the_lock() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    rest, cpu, cuda = lock_tool().sizes("demo")
    assert f"{rest} MB for `make demo`" in readme
    assert f"{cuda / 1000:.1f} GB with its CUDA libraries, or {cpu} MB with" in readme
    makefile = (ROOT / "Makefile").read_text()
    assert f"without {cuda / 1000:.1f} GB of CUDA libraries" in makefile
