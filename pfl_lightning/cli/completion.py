"""The words that may follow on the command line of `pfl-fit`, for a shell that asks through argcomplete."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from jsonargparse import ArgumentParser

from pfl_lightning.cli.classes import BASES, offered
from pfl_lightning.cli.help import class_options
from pfl_lightning.cli.layers import resolve_settings
from pfl_lightning.cli.parser import CLASSES, build_parser
from pfl_lightning.foundation.errors import ConfigError

OF_THE_COMMAND = ("--version", "--configs", "--sbatch", "--quiet", "--json", "--traceback")
"""Options that do not belong to the config."""


def completing_parser(line: str) -> ArgumentParser:
    """A parser that offers names of classes, and the settings of the classes that a command line has.

    Args:
        line: the command line so far.
    """
    parser = build_parser()
    for option in OF_THE_COMMAND:
        parser.add_argument(option, action="store_true")
    known = {option for action in parser._actions for option in action.option_strings}
    for option in dict.fromkeys(_settings(line)):
        if option not in known:
            parser.add_argument(option, default=argparse.SUPPRESS)  # only to be offered, not to be read
    for action in parser._actions:
        action.completer = _completer(action)  # type: ignore[attr-defined]
    return parser


def _settings(line: str) -> Iterable[str]:
    """The options of the classes in a command line, or of the default ones."""
    chosen = {"task": "Classification", "data": "Fashion10k"}
    with suppress(ConfigError, ValueError):  # the line is not finished
        chosen |= resolve_settings(shlex.split(line)[1:]).classes
    for key in CLASSES:
        with suppress(ConfigError):
            yield from class_options(key, chosen[key], chosen) if key in chosen else ()


def _completer(action: argparse.Action) -> Callable[..., Iterable[str]]:
    """Values that an option may have."""
    if action.dest in BASES:
        return lambda **_: list(offered(action.dest))
    usual: Any = getattr(action, "completer", None)
    return lambda **words: (usual(**words) if usual else None) or ()
