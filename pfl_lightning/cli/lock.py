"""One process at a time in a run directory. The kernel keeps the lock, so a crash releases it."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
from pathlib import Path

from pfl_lightning.errors import ConfigError

LOCK_NAME = ".lock"


class RunLock:
    """Held from construction until `release` or the end of the process, however it ends.

    The file stays: only a lock on it counts, so one that a crash left behind is in nobody's way. (A library's lock
    would turn into a mere file where a disk has no locks, and that one a crash would leave.)
    """

    def __init__(self, run_dir: Path) -> None:
        self._file = -1
        try:
            self._file = os.open(run_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._file, 0)
            os.write(self._file, f"process {os.getpid()} on {socket.gethostname()}".encode())
        except BlockingIOError as error:
            holder = os.pread(self._file, 200, 0).decode(errors="replace") or "another process"
            self.release()
            raise ConfigError(f"run_dir: {run_dir} is in use by {holder}; wait for its end or stop it") from error
        except OSError as error:
            if self._file < 0:
                raise ConfigError(f"run_dir: {run_dir} cannot be written: {error.strerror}") from error
            if error.errno != errno.ENOSPC:  # a full disk is told by what has to be written
                print(f"pfl-fit: warning: {run_dir} cannot be locked: start no second run there", file=sys.stderr)

    def release(self) -> None:
        """Let others in; releasing twice is fine."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
