"""Where a run's files go. A directory that holds something is never written into, unless its run is continued."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from pfl_lightning.atomic import make_folder
from pfl_lightning.cli.lock import LOCK_NAME
from pfl_lightning.errors import ConfigError
from pfl_lightning.ranks import Ranks

LATE_SECONDS = 60.0
"""Network disks may show a node what another one did so much later."""


def choose_run_dir(run_dir: str | None, name: str) -> Path:
    """The directory of a new run: as given, else `runs/<name>/<date-time>`. Nothing is created yet."""
    if run_dir is not None:
        path = Path(run_dir)
        check_free(path)
        return path
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    parent = Path("runs") / name
    path = next(p for n in range(1000) if not (p := parent / (f"{stamp}-{n}" if n else stamp)).exists())
    check_free(path)
    return path


def check_free(path: Path) -> None:
    """Refuse a path that is no directory, holds something, or cannot be written."""
    use = "use a directory that is empty or does not exist yet"
    _check_directory(path, use)
    if _content(path):
        or_continue = f", or continue its run with --resume {path}" if holds_run(path) else ""
        raise ConfigError(f"run_dir: {path} is not empty; {use}{or_continue}")
    parent = path
    while not parent.exists():
        parent = parent.parent
    try:
        Path(tempfile.mkdtemp(prefix=".pfl-fit-", dir=parent)).rmdir()
    except OSError as error:
        raise ConfigError(f"run_dir: {path} cannot be created: {parent}: {error.strerror}") from error


def check_start_or_continue(path: Path) -> None:
    """Refuse a path that is neither free nor the directory of a run."""
    if not holds_run(path):
        check_free(path)


def holds_run(path: Path) -> bool:
    """Whether a run has begun in this directory."""
    return (path / "config.yaml").is_file() or (path / "checkpoints").is_dir()


def create(path: Path) -> None:
    """Make the directory; parents too."""
    try:
        make_folder(path)
    except OSError as error:
        raise ConfigError(f"run_dir: {path} cannot be created: {error.strerror}") from error


def check_shared(path: Path, ranks: Ranks) -> None:
    """Refuse a directory, just claimed by the first rank, that other nodes do not see: their clients would be lost."""
    blind = {host for host, sees in zip(ranks.hosts, ranks.gather(_sees_lock(path)), strict=True) if not sees}
    if blind:
        nodes = ", ".join(sorted(blind))
        raise ConfigError(
            f"run_dir: {path} of {ranks.hosts[0]} is not seen on {nodes}; use a directory that all nodes share"
        )


def _sees_lock(path: Path) -> bool:
    end = time.monotonic() + LATE_SECONDS
    while True:
        with suppress(OSError):
            if LOCK_NAME in os.listdir(path):
                return True
        if time.monotonic() > end:
            return False
        time.sleep(0.5)


def _check_directory(path: Path, use: str) -> None:
    if path.exists() and not path.is_dir():
        raise ConfigError(f"run_dir: {path} is a file; {use}")


def _content(path: Path) -> list[Path]:
    """What is in a directory, but for the lock that every run leaves."""
    return [entry for entry in path.iterdir() if entry.name != LOCK_NAME] if path.is_dir() else []
