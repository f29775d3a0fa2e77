"""Which tests belong to which file of the algorithms."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CODE = ROOT / "pfl_lightning/algorithms"
TESTS = ROOT / "tests/algorithms"
OTHER_NAMES = {
    "fedavg": "plain",
    "fedprox": "plain",
    "local": "plain",
    "flocoplus": "floco",
    "fedavgft": "plain",
    "fedproxft": "plain",
}
"""Methods whose tests are in a file of another name."""
NUMPY_ROUNDS = ("fedala", "lpproj", "pfedfda")
"""Methods with whole rounds in `test_numpy_rounds.py`."""


class Target(NamedTuple):
    """The tests that should notice an error in a file."""

    own: list[str]
    """Test files of the method or, for a part, of all methods that use it."""
    classes: list[str]
    """The methods, for the contract."""


def files() -> list[str]:
    """The files of the algorithms, by their names under `pfl_lightning/algorithms`."""
    return sorted(str(path.relative_to(CODE)) for path in CODE.rglob("*.py") if path.stem != "__init__")


@cache
def target_of(file: str) -> Target:
    methods = [file] if "/" not in file else [f for f in files() if "/" not in f and file in used_by(f)]
    stems = [OTHER_NAMES.get(Path(m).stem, Path(m).stem) for m in methods]
    own = [f"test_{stem}.py" for stem in (Path(file).stem, *stems) if (TESTS / f"test_{stem}.py").exists()]
    own += ["test_numpy_rounds.py"] if any(Path(m).stem in NUMPY_ROUNDS for m in methods) else []
    classes = [c for m in methods for c in re.findall(r"^class (\w+)", (CODE / m).read_text(), re.MULTILINE)]
    return Target(list(dict.fromkeys(own)), classes)


@cache
def used_by(file: str) -> frozenset[str]:
    """The parts that a file imports, also through other parts."""
    found: set[str] = set()
    prefix = "pfl_lightning.algorithms.parts"
    for node in ast.walk(ast.parse((CODE / file).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(prefix):
            rest = node.module.removeprefix(prefix).removeprefix(".")
            found |= {f"parts/{rest or alias.name}.py" for alias in node.names}
    return frozenset(found.union(*(used_by(part) for part in found)))
