"""Files that come with the package, other than code: configs, and a script for SLURM."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1]
CONFIGS = FOLDER / "configs"
SBATCH = (FOLDER / "pfl_fit.sbatch").resolve()


def shipped_configs() -> dict[str, Path]:
    """The configs of the package by name, such as `fedobp_fashion10k` or `settings/fashion10k`."""
    paths = sorted(CONFIGS.rglob("*.yaml"), key=lambda path: (path.parent != CONFIGS, path))
    return {path.relative_to(CONFIGS).with_suffix("").as_posix(): path.resolve() for path in paths}


def find_config(path: Path) -> Path:
    """The file itself, or the package's config of this name."""
    return path if path.exists() else shipped_configs().get(path.as_posix(), path)


def similar_config(path: Path) -> str:
    """What to try in place of a config that does not exist."""
    names = {name.rpartition("/")[2]: name for name in reversed(shipped_configs())}
    near = get_close_matches(path.stem, names, n=1, cutoff=0.75)
    return f"did you mean {names[near[0]]}?" if near else "pfl-fit --configs lists the configs of the package"


def list_configs() -> str:
    """The names of all configs and the subject of each, one per line."""
    configs = shipped_configs()
    width = max(map(len, configs), default=0)
    return "".join(f"{name:<{width}}  {_subject(path)}\n" for name, path in configs.items())


def _subject(path: Path) -> str:
    """The first comment of a config, without the command at its end."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return re.sub(r": pfl-(fit|compare) .*$", "", first.lstrip("# "))
