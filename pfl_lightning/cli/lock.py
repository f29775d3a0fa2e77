"""One process at a time in a run directory. The kernel keeps the lock, so a crash releases it."""

from __future__ import annotations

import sys
from pathlib import Path

from filelock import FileLock, Timeout

from pfl_lightning.errors import ConfigError

LOCK_NAME = ".lock"


class RunLock:
    """Held from construction until `release` or the end of the process, however it ends."""

    def __init__(self, run_dir: Path) -> None:
        self._lock = FileLock(run_dir / LOCK_NAME, timeout=0)
        try:
            self._lock.acquire()
        except Timeout as error:
            raise ConfigError(
                f"run_dir: {run_dir} is in use by another process; wait for its end or stop it"
            ) from error
        except NotImplementedError:
            print(f"pfl-fit: warning: {run_dir} cannot be locked: start no second run there", file=sys.stderr)
        except OSError as error:
            raise ConfigError(f"run_dir: {run_dir} cannot be written: {error.strerror}") from error

    def release(self) -> None:
        """Let others in; releasing twice is fine."""
        self._lock.release()
