"""The config: its keys, their types, and one clear line for each way to get them wrong."""

from __future__ import annotations

import difflib
import inspect
import re
from argparse import ArgumentError
from typing import Any

from jsonargparse import ArgumentParser, Namespace, set_parsing_settings
from jsonargparse.typing import lazy_instance

import pfl_lightning.algorithms  # short names are found among the classes that are imported
import pfl_lightning.data
import pfl_lightning.nets
import pfl_lightning.tasks
from pfl_lightning.algorithm import Algorithm
from pfl_lightning.cli.launch import FabricConfig
from pfl_lightning.data import Fashion10k, FederatedData
from pfl_lightning.errors import ConfigError
from pfl_lightning.loop import LoopConfig
from pfl_lightning.tasks import Classification, Task

CLASSES: dict[str, type] = {"algorithm": Algorithm, "task": Task, "data": FederatedData}
GROUPS: dict[str, type] = {"loop": LoopConfig, "fabric": FabricConfig}


def build_parser() -> ArgumentParser:
    """The parser of `pfl-fit`."""
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = ArgumentParser(
        prog="pfl-fit",
        description="Train a personalized federation. A value on the command line wins over one in a file.",
        exit_on_error=False,
    )
    parser.add_argument("--config", action="config", help="YAML file; several are merged in order.")
    parser.add_argument("--algorithm", type=Algorithm, required=True, help="How clients cooperate.")
    parser.add_argument("--task", type=Task, default=lazy_instance(Classification), help="What is learned.")
    parser.add_argument("--data", type=FederatedData, default=lazy_instance(Fashion10k), help="Who has what.")
    for key, config in GROUPS.items():
        parser.add_class_arguments(config, key)
    parser.add_argument("--seed", type=int, default=0, help="The source of all randomness.")
    parser.add_argument(
        "--run_dir", type=str | None, default=None, help="Where files go; runs/<config name>/<date-time> by default."
    )
    return parser


def parse(parser: ArgumentParser, argv: list[str]) -> Namespace:
    """Parse, or raise a `ConfigError` of one line."""
    try:
        return parser.parse_args(argv)
    except ArgumentError as error:
        raise ConfigError(explain(str(error), parser)) from error


def instantiate(parser: ArgumentParser, config: Namespace) -> dict[str, Any]:
    """Make the objects, one by one, so that an error can name the key it belongs to."""
    parts = {}
    for key in (*CLASSES, *GROUPS):
        try:
            parts[key] = parser.instantiate(Namespace({key: config[key]}))[key]
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{key}.{error}") from error
    return parts


def explain(message: str, parser: ArgumentParser) -> str:
    """Turn the parser's nested message into one line: key, what is wrong, what is allowed."""
    keys = re.findall(r'Parser key "([^"]+)"', message)
    key = ".".join(keys)
    reason = re.split(r'Parser key "[^"]+":', message)[-1].strip()
    place = f"{key}: " if key else ""
    if match := re.search(r"Problem with given class_path '([^']+)':\s*Option '([^']+)' is not accepted", reason):
        allowed = list(inspect.signature(import_object(match[1])).parameters)
        return f"{key}.{match[2]}: {match[1].rsplit('.')[-1]} has no such option; use {_or(match[2], allowed)}"
    if match := re.search(r"Group '([^']+)' does not accept option '([^']+)'", reason):
        allowed = list(inspect.signature(GROUPS[match[1]]).parameters)
        return f"{match[1]}.{match[2]}: no such key; use {_or(match[2], allowed)}"
    if match := re.search(
        r"(?:Expected a dot import path string: |ImportError: |Unexpected import path format: )(\S+)", reason
    ):
        return f"{place}no class {match[1]}; use {_or(match[1], _names(key))}, or module.Class of your own"
    if match := re.search(r"unrecognized arguments: (.*)", reason):
        known = [option for action in parser._actions for option in action.option_strings]
        word = match[1].split()[0].split("=")[0]
        near = difflib.get_close_matches(word, known, 1, 0.5)
        return f"{word}: no such option" + (f"; did you mean {near[0]}?" if near else "; see pfl-fit --help")
    if match := re.search(
        r"Option '([^']+)' is not accepted|Key '([^']+)' is not expected|Unknown key '([^']+)'", reason
    ):
        word = next(filter(None, match.groups()))
        return f"{place}{word}: no such key; use {_or(word, [*CLASSES, *GROUPS, 'seed', 'run_dir'])}"
    if match := re.search(r"following arguments are required: (.*)", reason):
        return f"{match[1]}: missing; give it on the command line or in a --config file"
    return place + re.sub(r"<class '([^']+)'>", r"\1", " ".join(reason.split()))


def _or(word: str, allowed: list[str]) -> str:
    """The allowed words, the likeliest first."""
    near = difflib.get_close_matches(word, allowed, 1, 0.4)
    return " | ".join([*near, *(other for other in allowed if other not in near)])


def _names(key: str) -> list[str]:
    """Short names of the package's classes for a key."""
    root = CLASSES.get(key)
    if root is None:
        return []
    package = inspect.getmodule(
        {"algorithm": pfl_lightning.algorithms, "task": pfl_lightning.tasks, "data": pfl_lightning.data}[key]
    )
    assert package is not None
    return [n for n in package.__all__ if n != root.__name__ and issubclass(getattr(package, n), root)]
