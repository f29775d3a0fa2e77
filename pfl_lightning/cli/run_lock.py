"""One process at a time in a run directory. The kernel keeps the lock, so a crash releases it."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
from pathlib import Path

from pfl_lightning.foundation.errors import ConfigError

LOCK_NAME = ".lock"


class RunLock:
    """Held from construction until `release` or the end of the process, in whatever way it ends.

    The file stays. Only a lock on it counts, so a file left by a crash does no harm. (filelock falls back to a plain
    lock file on file systems without flock, which would survive a crash.)
    """

    def __init__(self, run_dir: Path) -> None:
        self._file = -1
        try:
            # a link in somebody else's directory must not lead us to a file of ours
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            self._file = os.open(run_dir / LOCK_NAME, flags, 0o666)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._file, 0)
            os.write(self._file, f"process {os.getpid()} on {socket.gethostname()}".encode())
        except BlockingIOError as error:
            holder = self._holder()
            self.release()
            raise ConfigError(
                f"run_dir: {run_dir} is in use by {holder}; wait until it ends, or stop it first"
            ) from error
        except OSError as error:
            if self._file < 0:
                raise ConfigError(f"run_dir: {run_dir} cannot be written: {_reason(error)}") from error
            if error.errno != errno.ENOSPC:  # a full disk is reported by the first file that does not fit
                print(f"pfl-fit: warning: {run_dir} cannot be locked; do not start a second run there", file=sys.stderr)

    def release(self) -> None:
        """Let others in. Releasing twice is fine."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _holder(self) -> str:
        text = os.pread(self._file, 200, 0).decode(errors="replace")
        return "".join(letter for letter in text if letter.isprintable()) or "another process"


def _reason(error: OSError) -> str:
    return f"{LOCK_NAME} is a link" if error.errno == errno.ELOOP else str(error.strerror)
