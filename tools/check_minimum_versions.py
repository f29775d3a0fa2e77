"""Test the lowest versions that pyproject.toml allows.

python tools/check_minimum_versions.py [--folder DIR]
    in a fresh environment, which is removed afterwards, or in one that stays in DIR for the next time
python tools/check_minimum_versions.py --keep torch torchvision lightning typing_extensions
    with these packages as they are installed here, so that nothing large is downloaded; all others go to a temporary
    folder that comes first on Python's path
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
import venv
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
TESTS = ["tests/comm/test_forked_ranks.py", "tests/cli/test_mistakes.py", "tests/cli/test_layers.py",
         "tests/cli/test_help.py", "tests/monitor", "tests/test_configs.py", "tests/cli/test_fit.py"]  # fmt: skip

SMALL = {"typing-extensions"}
"""Kept packages that others may bring along."""


def minima() -> dict[str, str]:
    """Package name to the requirement of its lowest version, such as `numpy==1.26`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = {}
    for text in project["dependencies"]:
        requirement = Requirement(text)
        (lowest,) = [bound.version for bound in requirement.specifier if bound.operator == ">="]
        extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        found[canonicalize_name(requirement.name)] = f"{requirement.name}{extras}=={lowest}"
    return found


def needs(name: str, others: set[str]) -> bool:
    """Whether an installed package requires one of the others."""
    return any(canonicalize_name(Requirement(text).name) in others for text in distribution(name).requires or [])


def install_fresh(folder: Path) -> tuple[str, dict[str, str]]:
    """Make an environment with all lowest versions; returns its Python and the variables to run it with."""
    venv.create(folder / "venv", with_pip=True)
    python = str(folder / "venv/bin/python")
    bounds = folder / "minima.txt"
    bounds.write_text("\n".join(spec.replace("[signatures]", "") for spec in minima().values()))
    pip(python, "--constraint", str(bounds), "--editable", str(ROOT), "pytest", "pytest-xdist")
    return python, {}


def install_beside(folder: Path, kept: set[str]) -> tuple[str, dict[str, str]]:
    """Put the lowest versions of all but the kept packages into a folder."""
    specs = {name: spec for name, spec in minima().items() if name not in kept}
    # what builds on a kept package must not bring another version of it along
    alone = [spec for name, spec in specs.items() if needs(name, kept - SMALL)]
    target = ["--target", str(folder / "packages"), "--upgrade"]
    pip(sys.executable, *target, *(spec for spec in specs.values() if spec not in alone))
    if alone:
        pip(sys.executable, *target, "--no-deps", *alone)
    return sys.executable, {"PYTHONPATH": f"{folder / 'packages'}{os.pathsep}{ROOT}"}


def pip(python: str, *words: str) -> None:
    subprocess.run([python, "-m", "pip", "install", "--quiet", *words], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keep", nargs="+", default=[], help="packages to use as they are installed here")
    parser.add_argument("--folder", type=Path, help="where to keep the environment")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="tests to run")
    options = parser.parse_args()
    kept = {canonicalize_name(name) for name in options.keep}
    with tempfile.TemporaryDirectory(prefix="pfl-minimum-") as name:
        folder = options.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        python, variables = install_beside(folder, kept) if kept else install_fresh(folder)
        print("\n".join(spec for name, spec in minima().items() if name not in kept), flush=True)
        # the wording of the help depends on the version of jsonargparse
        tests = [python, "-m", "pytest", "-n", "0", "-k", "not help_is_the_parsers_own_text", *options.tests]
        sys.exit(subprocess.run(tests, cwd=ROOT, env={**os.environ, **variables}).returncode)


if __name__ == "__main__":
    main()
