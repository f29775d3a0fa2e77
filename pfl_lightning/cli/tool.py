"""The frame of the commands that work on finished runs: the options they share, errors and output."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentError, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pfl_lightning
from pfl_lightning.cli.boundary import guard, take_traceback_option
from pfl_lightning.cli.status import Status
from pfl_lightning.foundation.errors import ConfigError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

EXIT_CODES = "Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted by Ctrl-C."


def new_parser(program: str, description: str, examples: str) -> ArgumentParser:
    """A parser with the options that all of these commands have."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(
        prog=program,
        description=description,
        epilog=f"examples:\n{examples}\n{EXIT_CODES}",
        formatter_class=RawDescriptionHelpFormatter,
        exit_on_error=False,
        allow_abbrev=False,
        version=pfl_lightning.__version__,
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--trust", action="store_true", help="run code from outside pfl_lightning that a run names")
    return parser


def run_command(parser: ArgumentParser, argv: Sequence[str] | None, work: Callable[[Any, Status], int]) -> int:
    """Parse the command line and do the work. Returns the exit code. Any failure is printed as one line.

    Args:
        parser: of the command.
        argv: the command line. Default: that of the process.
        work: does the work with the options. It may name slow steps on the terminal.
    """
    words, show_traceback = take_traceback_option(sys.argv[1:] if argv is None else argv)
    return guard(parser.prog, lambda: _parse_and_work(parser, words, work), show_traceback)


def _parse_and_work(parser: ArgumentParser, words: list[str], work: Callable[[Any, Status], int]) -> int:
    try:
        options = parser.parse_args(words)
    except ArgumentError as error:
        raise ConfigError(f"{' '.join(str(error).split())}; see {parser.prog} --help") from error
    if options.trust:  # a user's own classes; a stranger's run directory may hold files named as a package is
        sys.path.insert(0, os.getcwd())
    status = Status()
    try:
        return work(options, status)
    finally:
        status.clear()


def report_files(options: Any, files: Sequence[Path], **facts: Any) -> None:
    """Print the files that were written, one per line or as JSON."""
    if options.json:
        print(json.dumps({**facts, "files": [str(path) for path in files]}, indent=2))
    elif not options.quiet:
        for path in files:
            print(path)
