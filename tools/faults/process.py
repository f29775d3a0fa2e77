"""Runs of pfl-fit in processes that can be watched, stopped and killed."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def prepare() -> None:
    """Import everything and read a config once, for all forked processes. Nothing is computed: threads do not fork."""
    import torch.utils.tensorboard  # noqa: F401

    import pfl_lightning.cli.job  # noqa: F401
    from pfl_lightning.cli.parser import build_parser, parse

    parse(build_parser(), ["--algorithm", "FedOBP", "--task.net", "MLP", "--data.partition", "IID"])


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """An empty folder for the temporary files of all runs inside the block, so that a file which stays is noticed."""
    folder, before, variable = parent / "scratch", tempfile.tempdir, os.environ.get("TMPDIR")
    folder.mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    try:
        yield folder
    finally:
        tempfile.tempdir = before
        os.environ.pop("TMPDIR")
        if variable is not None:
            os.environ["TMPDIR"] = variable


class Run:
    """`pfl-fit` in its own process group, forked from this process, which has imported torch already."""

    def __init__(self, words: list[str], log: Path) -> None:
        self.log = log
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            # in a test, these are objects that write elsewhere
            sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
            os._exit(_main(words))
        self.code: int | None = None

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def wait(self, seconds: float = 1800.0) -> int:
        """The exit code, after all its processes have ended."""
        end = time.monotonic() + seconds
        while self.poll() is None or self._group_lives():
            if time.monotonic() > end:
                self.send(signal.SIGKILL)
                raise TimeoutError(f"the run does not end; see {self.log}")
            time.sleep(0.002)
        assert self.code is not None
        return self.code

    def send(self, number: int) -> None:
        """Send a signal to all its processes at the same time."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def ranks(self) -> list[int]:
        """The process ids of its forked ranks; its own if there is only one rank."""
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        except OSError:
            return []
        return [int(pid) for pid in children] or [self.pid]

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
