"""Where a run's files go. A directory that holds something is never written into."""

from __future__ import annotations

import tempfile
from datetime import datetime
from pathlib import Path

from pfl_lightning.errors import ConfigError


def choose_run_dir(run_dir: str | None, name: str) -> Path:
    """The run's directory: as given, else `runs/<name>/<date-time>`. Nothing is created yet."""
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
    if path.exists() and not path.is_dir():
        raise ConfigError(f"run_dir: {path} is a file; use a directory that is empty or does not exist yet")
    if path.is_dir() and any(path.iterdir()):
        raise ConfigError(f"run_dir: {path} is not empty; use a directory that is empty or does not exist yet")
    parent = path
    while not parent.exists():
        parent = parent.parent
    try:
        Path(tempfile.mkdtemp(prefix=".pfl-fit-", dir=parent)).rmdir()
    except OSError as error:
        raise ConfigError(f"run_dir: {path} cannot be created: {parent}: {error.strerror}") from error


def create(path: Path) -> None:
    """Make the directory; parents too."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"run_dir: {path} cannot be created: {error.strerror}") from error
