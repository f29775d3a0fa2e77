"""Run directories of a comparison. A directory is known by the config in it, never by its name."""

from __future__ import annotations

import fcntl
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import yaml

from pfl_lightning.checkpoint.manifest import Manifest, list_rounds, manifest_path
from pfl_lightning.checkpoint.marker import MARKER_NAME, read_marker
from pfl_lightning.checkpoint.sealed import Unusable
from pfl_lightning.compare.identity import identity
from pfl_lightning.compare.layers import class_name
from pfl_lightning.compare.plan import Cell
from pfl_lightning.compare.run_facts import Unreadable, read_rounds, read_summary
from pfl_lightning.foundation.own_sources import source_digest

LOCK = ".lock"
LONGEST_NAME = 150
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same results, ten times as fast


@dataclass(frozen=True)
class Found:
    """A directory that says it holds a run of a cell."""

    path: Path
    state: Literal["finished", "running", "resumable", "unusable"]
    reason: str = ""
    """Why it is unusable."""


def scan(folder: Path) -> dict[str, list[Path]]:
    """Identity → run directories in a folder whose config.yaml has that identity."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*/config.yaml")):
        if (its := _identity(path)) is not None:
            found.setdefault(its, []).append(path.parent)
    return found


def examine(cell: Cell, run_dir: Path) -> Found:
    """Whether a directory holds the results of a cell, its run in progress, a part of its run, or something else."""
    if _identity(run_dir / "config.yaml") != cell.id:
        return Found(run_dir, "unusable", "its config.yaml is that of another run")
    if in_use(run_dir):
        return Found(run_dir, "running")
    try:
        marker = read_marker(run_dir)
    except Unusable as reason:
        return Found(run_dir, "unusable", str(reason))
    if marker is None:
        return Found(run_dir, "unusable", f"it has no {MARKER_NAME}")
    checkpoints = list(_checkpoints(run_dir))
    if any(stored != cell.id for stored in [text_identity(marker.config), *checkpoints]):
        return Found(run_dir, "unusable", f"its config.yaml differs from its {MARKER_NAME} or from its checkpoints")
    if changed := [name for name, digest in marker.sources.items() if source_digest(name) not in (None, digest)]:
        return Found(run_dir, "unusable", f"{', '.join(changed)} has changed since")
    try:
        summary = read_summary(run_dir)
    except Unreadable as reason:
        fresh = not marker.has_checkpoint and not (run_dir / "summary.json").exists()  # it can start again
        return Found(run_dir, "resumable" if checkpoints or fresh else "unusable", f"{reason} and no checkpoint")
    try:
        _check_summary(cell, summary, read_rounds(run_dir))
    except Unreadable as reason:
        return Found(run_dir, "unusable", str(reason))
    return Found(run_dir, "finished")


def choose(cell: Cell, candidates: Iterable[Path]) -> tuple[Found | None, list[Found]]:
    """The directory to read or to continue, and those that cannot be used."""
    found = [examine(cell, path) for path in candidates]
    usable = [one for one in found if one.state != "unusable"]
    usable.sort(key=lambda one: ("finished", "running", "resumable").index(one.state))
    return (usable[0] if usable else None), [one for one in found if one.state == "unusable"]


def file_name(cell: Cell) -> str:
    """A name for people, short enough for every disk, with a part of the cell's identity."""
    words = re.sub(r"[^A-Za-z0-9.=+-]+", "-", cell.label).strip("-")
    return f"{words[:LONGEST_NAME]}-{cell.id[:8]}"


def new_directory(cell: Cell, folder: Path) -> Path:
    """A directory that does not exist yet, with a name for people."""
    name = file_name(cell)
    return next(path for n in range(1, 10_000) if not (path := folder / (f"{name}-{n}" if n > 1 else name)).exists())


def in_use(run_dir: Path) -> bool:
    """Whether a process holds the lock of a run directory."""
    try:
        handle = os.open(run_dir / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a disk without locks
        return False
    finally:
        os.close(handle)
    return False


def _check_summary(cell: Cell, summary: Mapping[str, Any], rounds: list[dict[str, float]]) -> None:
    """Refuse results that contradict the config. Raises `Unreadable`."""
    expected = {
        "seed": cell.config["seed"],
        "rounds": cell.rounds,
        "algorithm": class_name(cell.config, "algorithm"),
        "num_clients": cell.config.get("data", {}).get("init_args", {}).get("num_clients"),
    }
    for key, value in expected.items():
        if value is not None and key in summary and summary[key] != value:
            raise Unreadable(f"its summary.json has {key} {summary[key]} and its config {value}")
    if summary.get("rounds") != cell.rounds:
        raise Unreadable("its summary.json does not say how many rounds it has")
    if [row["round"] for row in rounds] != list(range(1, cell.rounds + 1)):
        raise Unreadable("its metrics.csv does not have every round once")
    for column, value in summary.get("last", {}).items():
        values = [row[column] for row in rounds if column in row]
        if values and (None if math.isnan(values[-1]) else values[-1]) != value:
            raise Unreadable(f"its summary.json and its metrics.csv differ in {column}")


def _checkpoints(run_dir: Path) -> Iterable[str | None]:
    """The identities of the configs in all checkpoints that can be read."""
    folder = run_dir / "checkpoints"
    for round_ in list_rounds(folder):
        try:
            yield text_identity(Manifest.read(manifest_path(folder, round_)).config)
        except Unusable:
            continue


def _identity(path: Path) -> str | None:
    try:
        return text_identity(path.read_text())
    except (OSError, ValueError):
        return None


@lru_cache(maxsize=10_000)
def text_identity(text: str) -> str | None:
    """The identity of a config in YAML. None if it is no config."""
    try:
        config = yaml.load(text, LOADER)
    except yaml.YAMLError:
        return None
    return identity(config) if isinstance(config, dict) else None
