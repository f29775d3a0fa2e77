"""The outer edge of every command: any failure becomes one line and an exit code.

Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence

from pfl_lightning.cli.failure import describe
from pfl_lightning.foundation.errors import ConfigError, RunError, UnexpectedError

INTERRUPTED = 130
ERROR_GRACE_SECONDS = 5.0
"""Other ranks wait this long so that rank 0 can print the error before the launcher kills it."""
TRACEBACK_OPTION = "--traceback"


def take_traceback_option(argv: Sequence[str]) -> tuple[list[str], bool]:
    """The command line without `--traceback`, and whether it was there."""
    words = [word for word in argv if word != TRACEBACK_OPTION]
    return words, len(words) < len(argv)


def guard(program: str, work: Callable[[], int], show_traceback: bool = False) -> int:
    """Do the work of a command and return its exit code. A failure is printed as one line.

    Args:
        program: the name of the command.
        work: returns the exit code.
        show_traceback: whether to print tracebacks before that line.
    """
    try:
        return work()
    except SystemExit as end:
        return exit_code(end)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return complain(program, foreseen(error), show_traceback)


def exit_code(end: SystemExit) -> int:
    """The code of a `SystemExit`, which may also hold None or a text."""
    return end.code if isinstance(end.code, int) else int(end.code is not None)


def foreseen(error: BaseException) -> ConfigError | RunError:
    """The error itself if its message is meant for users, else an `UnexpectedError` that names place and cause."""
    if isinstance(error, (ConfigError, RunError)):
        return error
    unexpected = UnexpectedError(describe(error))
    unexpected.__cause__ = error
    return unexpected


def complain(program: str, error: ConfigError | RunError, show_traceback: bool = False, hint: str = "") -> int:
    """Print an error as one line and return its exit code.

    Args:
        program: the name of the command.
        error: any error. Line breaks in its message are replaced by spaces.
        show_traceback: whether to print its traceback first.
        hint: for an unexpected error, where its traceback is. By default how to see it.
    """
    if show_traceback:
        traceback.print_exception(error.__cause__ or error)
    elif isinstance(error, UnexpectedError):
        hint = hint or f"add {TRACEBACK_OPTION} to see where"
        error.args = (f"{error}; {hint}",)
    print(f"{program}: error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
    return error.exit_code


def let_rank_zero_report() -> None:
    """Wait for the launcher, which kills all other ranks as soon as rank 0 has left."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(ERROR_GRACE_SECONDS)
