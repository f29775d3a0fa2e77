"""Runs of pfl-fit in processes that can be watched and killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path


class Run:
    """`pfl-fit` in a process group of its own, forked from this process, which has paid for importing torch already."""

    def __init__(self, words: list[str], log: Path) -> None:
        self.log = log
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            os._exit(_main(words))
        self.code: int | None = None

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def wait(self, seconds: float = 120.0) -> int:
        """Its exit code, when all its processes are gone."""
        end = time.monotonic() + seconds
        while self.poll() is None or self._group_lives():
            if time.monotonic() > end:
                self.kill()
                raise TimeoutError(f"the run does not end; see {self.log}")
            time.sleep(0.005)
        assert self.code is not None
        return self.code

    def kill(self) -> None:
        """SIGKILL for all its processes at once, as a node that loses power."""
        os.killpg(self.pid, signal.SIGKILL)

    def ranks(self) -> list[int]:
        """Its forked ranks."""
        try:
            return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        except OSError:
            return []

    def _group_lives(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return True


def _main(words: list[str]) -> int:
    from pfl_lightning.cli.fit import main

    try:
        main(words)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except BaseException:
        import traceback

        traceback.print_exc()
        return 99
    finally:
        sys.stdout.flush()
    return 0
