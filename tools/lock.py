"""Writes lock.txt, the exact versions of `make demo`, `make test` and CI, and says what they cost.

    make lock                            # the newest versions that pyproject.toml allows
    python tools/lock.py announce demo   # what `make demo` is about to download, and how large

Writing needs uv, which `make lock` installs in an environment of its own. lock.txt is a
constraints file: pip takes from it only what the package asks for, so that a CPU build of torch
brings no CUDA libraries although their versions are listed.
"""

from __future__ import annotations

import argparse
import importlib.metadata as metadata
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "lock.txt"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28")
TORCH = "2.13.0"
#: Size of torch's CPU build, which lies on an index of its own that is not asked here.
TORCH_CPU_MB = 192
# tests/device/spills.json was recorded with this release of the GPU compiler.
HELD = (f"torch=={TORCH}", "nvidia-cuda-nvrtc<13.1")
# hatchling asks for editables when it builds an editable install.
BUILD = ("hatchling", "editables")
#: What a CUDA build of torch brings, besides itself.
CUDA = re.compile(r"nvidia-|cuda-|triton$")
EXTRAS = {"demo": (), "test": ("test",)}

HEADER = """\
# Exact versions for `make demo`, `make test` and CI, for Python {first} to {last} on Linux.
# Written by `make lock`, not by hand. What is listed is installed only if it is asked for.
"""
SIZE = "# Download of make {command}: {rest} MB, and for torch {cpu} MB (CPU) or {cuda} MB (CUDA)\n"
SIZES = re.compile(r"make (\w+): (\d+) MB, and for torch (\d+) MB \(CPU\) or (\d+) MB \(CUDA\)")


def compile_versions(*arguments: str | Path) -> str:
    """Runs ``uv pip compile`` on pyproject.toml; returns what it prints."""
    command = ["uv", "pip", "compile", "-q", "--no-header", "--no-annotate", "pyproject.toml"]
    done = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"uv pip compile: {done.stderr.strip()}")
    return done.stdout


def megabytes(lock: Path, extras: tuple[str, ...]) -> tuple[int, int]:
    """Sizes of the wheels for one machine: all but torch and what it brings, and those."""
    asked = [word for extra in extras for word in ("--extra", extra)]
    text = compile_versions(
        "--python-version", PYTHONS[0], "--python-platform", PLATFORMS[0],
        "--constraint", lock, "--format", "pylock.toml", *asked,
    )  # fmt: skip
    with (ROOT / "pyproject.toml").open("rb") as file:
        named = tomllib.load(file)["project"]["optional-dependencies"]
    direct = {re.split(r"[^\w-]", need)[0] for extra in extras for need in named[extra]}
    rest = torch = 0
    for package in tomllib.loads(text)["packages"]:
        name, size = package["name"], package["wheels"][0]["size"]
        if name == "torch" or (CUDA.match(name) and name not in direct):
            torch += size
        else:
            rest += size
    return round(rest / 1e6), round(torch / 1e6)


def write() -> None:
    """Locks the newest versions, after checking that each has a wheel for every Python."""
    with tempfile.TemporaryDirectory() as folder:
        build, held, lock = (Path(folder, f"{name}.txt") for name in ("build", "held", "lock"))
        build.write_text("\n".join(BUILD))
        held.write_text("\n".join(HELD))
        versions = compile_versions(
            build, "--constraint", held, "--universal", "--python-version", PYTHONS[0],
            "--all-extras",
        )  # fmt: skip
        lock.write_text(versions)
        for python in PYTHONS:
            for platform in PLATFORMS:
                compile_versions(
                    "--all-extras", "--constraint", lock, "--only-binary", ":all:",
                    "--python-version", python, "--python-platform", platform,
                )  # fmt: skip
        header = HEADER.format(first=PYTHONS[0], last=PYTHONS[-1])
        for command, extras in EXTRAS.items():
            rest, cuda = megabytes(lock, extras)
            header += SIZE.format(command=command, rest=rest, cpu=TORCH_CPU_MB, cuda=cuda)
    LOCK.write_text(header + versions)


def sizes(command: str) -> tuple[int, int, int]:
    """MB that a command downloads: all but torch, torch as the CPU build, torch with CUDA."""
    found = {match[1]: match.groups()[1:] for match in SIZES.finditer(LOCK.read_text())}
    rest, cpu, cuda = map(int, found[command])
    return rest, cpu, cuda


def announcement(command: str, installed: str | None, *, cpu: bool = False) -> str:
    """Returns what is about to be downloaded for a command of the Makefile, and how large.

    Args:
        command: a key of :data:`EXTRAS`.
        installed: the release of torch that the environment holds, if any.
        cpu: whether torch's CPU build was asked for.
    """
    rest, small, large = sizes(command)
    told = f"installing the versions of lock.txt into .venv: up to {rest} MB to download"
    if installed is not None and installed.partition("+")[0] == TORCH:
        return f"{told}; torch {installed} is there already"
    if cpu:
        return f"{told}, and {small} MB for the CPU build of torch {TORCH}"
    return (
        f"{told}, and up to {large / 1000:.1f} GB for torch {TORCH} with its CUDA libraries; "
        f"without a GPU, 'make {command} TORCH=cpu' takes its CPU build, {small} MB"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="action", required=True)
    commands.add_parser("write", help="write lock.txt; needs uv")
    announce = commands.add_parser("announce", help="say what a command downloads")
    announce.add_argument("command", choices=EXTRAS)
    announce.add_argument("--cpu", action="store_true", help="torch's CPU build was asked for")
    given = parser.parse_args()
    if given.action == "write":
        write()
        return
    print("maxk:", announcement(given.command, _torch(), cpu=given.cpu), flush=True)


def _torch() -> str | None:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
