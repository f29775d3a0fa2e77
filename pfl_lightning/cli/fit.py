"""`pfl-fit`: train a federation from a config."""

from __future__ import annotations

import os
import sys
import threading
from importlib import resources
from typing import TYPE_CHECKING

import pfl_lightning
from pfl_lightning.cli.boundary import guard, let_rank_zero_report, take_traceback_option
from pfl_lightning.cli.status import Status, is_first_process
from pfl_lightning.foundation.errors import ConfigError, RunError
from pfl_lightning.foundation.shipped import SBATCH, list_configs
from pfl_lightning.foundation.signals import StopSignals

if TYPE_CHECKING:
    from collections.abc import Sequence

OUTPUT_OPTIONS = ("--quiet", "--json")
"""Options of the command that do not belong to the config of the run."""
COMPLETION = "_ARGCOMPLETE"
"""Set by a shell that asks for completions."""


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point. Exit codes: 2 for bad input, 1 for a run that failed, 128 + n after signal n (Ctrl-C: 130)."""
    argv = list(sys.argv[1:] if argv is None else argv)
    stop = StopSignals()
    stop.install()
    threading.excepthook = _in_thread
    sys.exit(run(argv, stop))


def run(argv: Sequence[str], stop: StopSignals | None = None) -> int:
    """Parse, prepare, and launch on all ranks. Returns the exit code."""
    words, show_traceback = take_traceback_option(argv)
    return guard("pfl-fit", lambda: _run(words, stop or StopSignals(), show_traceback), show_traceback)


def _run(argv: list[str], stop: StopSignals, show_traceback: bool) -> int:
    if COMPLETION in os.environ:
        return _complete()
    if not argv:
        raise ConfigError("algorithm: missing; use --config FILE.yaml or --algorithm NAME, or see pfl-fit --help")
    if answer := _quick_answer(argv):
        print(answer, end="")
        return 0
    quiet, as_json = "--quiet" in argv, "--json" in argv
    argv = [word for word in argv if word not in OUTPUT_OPTIONS]
    status = Status()
    status.say("loading PyTorch")
    try:
        from pfl_lightning.cli.help import asked_help, class_help
        from pfl_lightning.cli.job import Job
        from pfl_lightning.cli.launch import launch, make_fabric
        from pfl_lightning.cli.own_code import add_to_path, own_folders
        from pfl_lightning.cli.resumed_run import needs_trust

        add_to_path(own_folders(argv, needs_trust(argv)))
        if question := asked_help(argv):
            status.clear()
            print(class_help(*question), end="")
            return 0
        job = Job(argv, stop, status, show_traceback)
        job.quiet = quiet or as_json
        fabric = make_fabric(job.fabric, job.cohort_size, job.loop.ranks_per_client)
    except ConfigError:
        if not is_first_process():  # most likely rank 0 has met the same error
            let_rank_zero_report()
        raise
    finally:
        status.clear()
    stop.armed = True
    with job.directory:
        try:
            code = launch(fabric, job)
            if as_json and not code and is_first_process():
                print((job.run_dir / "summary.json").read_text(), end="")
            return code
        except RunError as error:
            job.advise(error)
            raise


def _complete() -> int:
    """The words that may follow, for a shell that asks through argcomplete."""
    from pfl_lightning.cli.completion import completing_parser

    completing_parser(os.environ.get("COMP_LINE", "")).parse_args([])  # ends the process with the answer
    return 0


def _quick_answer(argv: list[str]) -> str:
    """The answer to `--version`, `--help`, `--configs` and `--sbatch`, without the seconds that torch takes."""
    if "--version" in argv:
        return f"pfl-fit {pfl_lightning.__version__}\n"
    if "--configs" in argv:
        return list_configs()
    if "--sbatch" in argv:
        return f"{SBATCH}\n"
    if "--help" in argv or "-h" in argv:
        return resources.files("pfl_lightning.cli").joinpath("help.txt").read_text(encoding="utf-8")
    return ""


def _in_thread(failure: threading.ExceptHookArgs) -> None:
    """TensorBoard's thread hands a full disk on to the main thread, which reports it. Print no second message."""
    if not issubclass(failure.exc_type, OSError):
        threading.__excepthook__(failure)
