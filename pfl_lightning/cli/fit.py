"""`pfl-fit`: train a federation from a config."""

from __future__ import annotations

import os
import sys
import threading
from importlib import resources
from typing import TYPE_CHECKING

from pfl_lightning.errors import ConfigError, RunError
from pfl_lightning.signals import StopSignals

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point. Exit codes: 2 for bad input, 1 for a run that failed, 128 + n after signal n (Ctrl-C: 130)."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv in (["--help"], ["-h"]):  # the same text as the parser's, without the seconds that torch takes to import
        print(resources.files("pfl_lightning.cli").joinpath("help.txt").read_text(), end="")
        return
    stop = StopSignals()
    stop.install()
    threading.excepthook = _in_thread
    sys.exit(run(argv, stop))


def run(argv: list[str], stop: StopSignals | None = None) -> int:
    """Parse, prepare, launch on all ranks; returns the exit code."""
    stop = stop or StopSignals()
    try:
        from pfl_lightning.cli.job import Job
        from pfl_lightning.cli.launch import launch, make_fabric

        sys.path.insert(0, os.getcwd())  # a user's own classes live in files beside their configs
        job = Job(argv, stop)
        fabric = make_fabric(job.fabric, job.cohort_size, job.loop.ranks_per_client)
        stop.armed = True
        try:
            return launch(fabric, job)
        except RunError as error:
            job.advise(error)
            raise
    except (ConfigError, RunError) as error:
        return complain(error)
    except KeyboardInterrupt:
        return 130


def _in_thread(failure: threading.ExceptHookArgs) -> None:
    """TensorBoard's thread hands a full disk on to the main one, which says it; no traceback besides."""
    if not issubclass(failure.exc_type, OSError):
        threading.__excepthook__(failure)


def complain(error: ConfigError | RunError) -> int:
    """Say it in one line; returns the exit code."""
    print(f"pfl-fit: error: {error}", file=sys.stderr, flush=True)
    return error.exit_code
