"""Commands in a process of their own that is forked from the tests, which have imported torch already."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any

import torch

from pfl_lightning.cli import fit


class ForkedFit:
    """A run in a process of its own, with the part of `subprocess.Popen` that tests use.

    A new interpreter would import torch for seconds. Tests of that import and of Ctrl-C start one.

    Args:
        words: the command line.
        env: variables beside those of the tests.
        apart: whether standard error has a pipe of its own, `stderr`.
        main: the entry point of the command.
    """

    def __init__(
        self,
        words: list[str],
        env: Mapping[str, str] | None = None,
        apart: bool = False,
        main: Callable[[list[str]], None] = fit.main,
    ) -> None:
        pipes = [os.pipe() for _ in range(1 + apart)]
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _become_command(main, words, env or {}, [write for _, write in pipes])
        for _, write in pipes:
            os.close(write)
        self.stdout: IO[str] = os.fdopen(pipes[0][0])
        self.stderr: IO[str] | None = os.fdopen(pipes[1][0]) if apart else None
        self.returncode: int | None = None

    def __enter__(self) -> ForkedFit:
        return self

    def __exit__(self, *error: Any) -> None:
        if self.returncode is None and error[0] is not None:
            os.kill(self.pid, signal.SIGKILL)
        self.wait()
        for pipe in (self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """The exit code; minus the signal that ended it."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        """Everything it writes until it ends. What comes apart is short enough for its pipe."""
        written = self.stdout.read(), self.stderr.read() if self.stderr is not None else ""
        self.wait()
        return written


def _become_command(
    main: Callable[[list[str]], None], words: list[str], env: Mapping[str, str], pipes: list[int]
) -> None:
    """Do as a new interpreter would: its own streams and signals, then the entry point. Does not return."""
    code = 99
    try:
        os.dup2(pipes[0], 1)
        os.dup2(pipes[-1], 2)
        for pipe in pipes:
            os.close(pipe)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))  # pytest has its own
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.update(env)
        torch.cuda._is_in_bad_fork = lambda: False  # else it may not fork ranks. The tests have used no GPU
        main(words)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
