"""Lists what the package needs, with versions and licences as the packages themselves state them.

    python tools/licences.py            # what pip installs with maxk
    python tools/licences.py test       # with an extra

pip-audit, where its database can be reached, tells the known faults of the same list:

    python tools/licences.py --audit    # needs: pip install pip-audit
"""

from __future__ import annotations

import argparse
import importlib.metadata as metadata
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def needed(extras: list[str]) -> dict[str, metadata.Distribution]:
    """The installed distributions that maxk asks for, and that those ask for, by name."""
    from packaging.requirements import Requirement

    found: dict[str, metadata.Distribution] = {}
    open_ends: list[tuple[str, tuple[str, ...]]] = [("maxk", tuple(extras))]
    while open_ends:
        name, wanted = open_ends.pop()
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        for line in package.requires or ():
            need = Requirement(line)
            contexts = [{"extra": extra} for extra in ("", *wanted)]
            if need.marker is None or any(need.marker.evaluate(each) for each in contexts):
                key = re.sub(r"[-_.]+", "-", need.name).lower()
                if key not in found and key != "maxk":
                    open_ends.append((need.name, tuple(need.extras)))
        if name != "maxk":
            found[re.sub(r"[-_.]+", "-", name).lower()] = package
    return dict(sorted(found.items()))


def licence(package: metadata.Distribution) -> str:
    """The licence expression, or what the classifiers or the first line of the text say."""
    about = package.metadata
    if about.get("License-Expression"):
        return str(about["License-Expression"])
    classified = [
        line.rpartition(" :: ")[2]
        for line in about.get_all("Classifier") or ()
        if line.startswith("License ::")
    ]
    if classified:
        return ", ".join(classified)
    text = (about.get("License") or "").strip().splitlines()
    return text[0] if text else "not stated"


def main() -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("extras", nargs="*", help="extras of maxk to include")
    parser.add_argument("--audit", action="store_true", help="ask pip-audit for known faults")
    given = parser.parse_args()
    packages = needed(given.extras)
    if given.audit:
        with tempfile.TemporaryDirectory() as folder:
            listed = Path(folder) / "requirements.txt"
            listed.write_text(
                "".join(f"{name}=={p.version.partition('+')[0]}\n" for name, p in packages.items())
            )
            words = ["-m", "pip_audit", "--no-deps", "--disable-pip", "--requirement", str(listed)]
            return subprocess.run([sys.executable, *words], check=False).returncode
    for name, package in packages.items():
        print(f"{name:<26} {package.version:<16} {licence(package)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
