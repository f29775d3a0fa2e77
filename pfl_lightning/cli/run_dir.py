"""The directory of a run. A directory with files in it is never written to, unless they are those of the same run."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Self

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

from pfl_lightning.checkpoint.manifest import list_rounds
from pfl_lightning.checkpoint.marker import MARKER_NAME
from pfl_lightning.cli.run_lock import LOCK_NAME, RunLock
from pfl_lightning.comm.ranks import Comm
from pfl_lightning.foundation.atomic_files import make_folder, temporary_path
from pfl_lightning.foundation.errors import ConfigError

VISIBLE_SECONDS = 60.0
"""How long to wait until another node's new file is visible. Network disks may need that time."""
BEFORE_MARKER = {LOCK_NAME, temporary_path(Path(MARKER_NAME)).name}
"""Files that a run writes before its marker. A kill may leave a directory with nothing but these."""
RUN_FILES = ("config.yaml", "partition.safetensors", "metrics.csv", "summary.json", MARKER_NAME)
USE_ANOTHER = "use a new or empty directory"


class RunDirectory:
    """The directory of this run, from the choice of its name to the release of its lock.

    Args:
        path: the directory that the user has named. None for `runs/<name>/<date-time>`.
        name: name of the run, for the default directory.
        check: raises a `ConfigError` if the run must not write there. By default if the directory is not free.
    """

    def __init__(self, path: Path | None, name: str, check: Callable[[], None] | None = None) -> None:
        self.path = Path("runs") / name if path is None else path
        self._check = check or (lambda: check_free(self.path))
        self._is_dated = path is None
        self._is_reserved = False
        self._created: list[Path] = []
        self._lock: RunLock | None = None
        check_writable(self.path) if self._is_dated else self._check()

    def __enter__(self) -> Self:
        """Create the directory. Only the process that starts the run does so."""
        if is_first_process():
            self._reserve()
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the directories that were created, unless the run has written something."""
        if self._created and self.path.is_dir() and not content(self.path):
            with suppress(OSError):
                for name in BEFORE_MARKER:
                    (self.path / name).unlink(missing_ok=True)
                for path in self._created:
                    path.rmdir()

    def _reserve(self) -> None:
        self._is_reserved = True
        self._created = [parent for parent in (self.path, *self.path.parents) if not parent.exists()]
        try:
            make_folder(self.path)
            if self._is_dated:
                self.path = _create_dated(self.path)
                self._created.insert(0, self.path)
        except OSError as error:
            parent = Path(error.filename or self.path).parent
            raise _cannot_create(self.path, parent, error.strerror or str(error)) from error

    def claim(self) -> Path:
        """Lock the directory on rank 0. Returns its path."""
        if not self._is_reserved:
            self._reserve()
        self._lock = RunLock(self.path)
        self._check()  # another run may have started and ended since the first check
        return self.path

    def remove_leftovers(self) -> None:
        """Remove temporary files that an earlier process of this run left when it was killed."""
        for name in RUN_FILES:
            with suppress(OSError):
                temporary_path(self.path / name).unlink(missing_ok=True)

    def release(self) -> None:
        """Release the lock. Releasing twice is fine."""
        if self._lock:
            self._lock.release()


def is_first_process() -> bool:
    """Whether this process is rank 0, or the one that will start the ranks."""
    if TorchElasticEnvironment.detect():
        return os.environ["RANK"] == "0"
    return not SLURMEnvironment.detect() or os.environ.get("SLURM_PROCID", "0") == "0"


def check_free(path: Path) -> None:
    """Refuse a path that cannot be written, is no directory, or has files in it."""
    check_directory(path)
    if content(path):
        or_continue = f", or continue its run with --resume {path}" if list_rounds(path / "checkpoints") else ""
        raise ConfigError(f"run_dir: {path} is not empty; {USE_ANOTHER}{or_continue}")
    check_writable(path)


def check_directory(path: Path) -> None:
    """Refuse a path that exists and is not a directory, or that the system refuses, such as a very long name."""
    try:
        is_file = path.exists() and not path.is_dir()
    except OSError as error:
        raise ConfigError(f"run_dir: {path} cannot be used: {error.strerror}; {USE_ANOTHER}") from error
    if is_file:
        raise ConfigError(f"run_dir: {path} is a file; {USE_ANOTHER}")


def check_writable(path: Path) -> None:
    """Refuse a directory that cannot be written or created."""
    parent = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not parent.is_dir():
        raise _cannot_create(path, parent, os.strerror(errno.ENOTDIR))
    if not os.access(parent, os.W_OK | os.X_OK):
        is_read_only = os.statvfs(parent).f_flag & os.ST_RDONLY
        raise _cannot_create(path, parent, os.strerror(errno.EROFS if is_read_only else errno.EACCES))


def check_shared(path: Path, ranks: Comm) -> None:
    """Refuse a directory that other nodes do not see: the states of their clients would be lost."""
    blind = {host for host, sees in zip(ranks.hosts, ranks.gather(_sees_lock(path)), strict=True) if not sees}
    if blind:
        nodes = ", ".join(sorted(blind))
        raise ConfigError(
            f"run_dir: {path} on {ranks.hosts[0]} is not visible on {nodes}; use a directory that all nodes share"
        )


def content(path: Path) -> list[str]:
    """The names in a directory, without those that a run leaves when it is killed before it has written anything."""
    return sorted(set(os.listdir(path)) - BEFORE_MARKER) if path.is_dir() else []


def _cannot_create(path: Path, parent: Path, reason: str) -> ConfigError:
    return ConfigError(f"run_dir: {path} cannot be created: {parent}: {reason}")


def _create_dated(parent: Path) -> Path:
    """Create a new directory named by date and time. Runs that start in the same second get a number."""
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    for number in count():
        path = parent / (f"{stamp}-{number}" if number else stamp)
        with suppress(FileExistsError):
            path.mkdir()  # fails if it exists, so no two processes get the same one
            return path
    raise AssertionError("count has no end")


def _sees_lock(path: Path) -> bool:
    end = time.monotonic() + VISIBLE_SECONDS
    while True:
        with suppress(OSError):
            if LOCK_NAME in os.listdir(path):
                return True
        if time.monotonic() > end:
            return False
        time.sleep(0.5)
