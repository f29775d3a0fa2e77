"""Write constraints.txt: the versions of all packages that the tests need, as they are installed now.

They hold for this version of Python only. On others pip is free to choose.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = "pfl-lightning"
EXTRAS = ("dev", "own_data", "search", "docs")
TARGET = Path(__file__).parents[1] / "constraints.txt"


def pins(name: str, extras: tuple[str, ...], found: dict[str, str]) -> None:
    """Enter the version of a package, and of all that it requires here, into `found`."""
    for text in distribution(name).requires or []:
        requirement = Requirement(text)
        other = canonicalize_name(requirement.name)
        wanted = requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in (*extras, "")
        )
        if not wanted or (other in found and not requirement.extras):
            continue
        try:
            found[other] = distribution(other).version
        except PackageNotFoundError:  # wanted by another extra only
            continue
        pins(other, tuple(requirement.extras), found)


def main() -> None:
    found: dict[str, str] = {}
    pins(PROJECT, EXTRAS, found)
    found.pop(PROJECT, None)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    lines = [f'{name}=={version.partition("+")[0]} ; python_version == "{python}"' for name, version in found.items()]
    head = "# Versions that CI tests, written by tools/write_constraints.py\n"
    TARGET.write_text(head + "\n".join(sorted(lines)) + "\n")
    print(f"wrote {len(lines)} versions to {TARGET}")


if __name__ == "__main__":
    main()
