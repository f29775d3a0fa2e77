"""The config: its keys, their types, and one clear line for each way to get them wrong."""

from __future__ import annotations

from argparse import ArgumentError
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser, Namespace, set_parsing_settings
from jsonargparse.typing import lazy_instance

import pfl_lightning.algorithms  # short names are found among the classes that are imported
import pfl_lightning.nets  # noqa: F401
from pfl_lightning.algorithm import Algorithm
from pfl_lightning.checkpoint import CheckpointConfig
from pfl_lightning.cli.explain import explain, full_key
from pfl_lightning.cli.extends import expand
from pfl_lightning.cli.launch import FabricConfig
from pfl_lightning.cli.resume import stored_config
from pfl_lightning.data import Fashion10k, FederatedData
from pfl_lightning.errors import ConfigError
from pfl_lightning.loop_config import LoopConfig
from pfl_lightning.report.recorders import ReportConfig
from pfl_lightning.store import StoreConfig
from pfl_lightning.tasks import Classification, Task

CLASSES: dict[str, type] = {"algorithm": Algorithm, "task": Task, "data": FederatedData}
GROUPS: dict[str, type] = {
    "loop": LoopConfig,
    "fabric": FabricConfig,
    "checkpoint": CheckpointConfig,
    "store": StoreConfig,
    "report": ReportConfig,
}


def build_parser() -> ArgumentParser:
    """The parser of `pfl-fit`."""
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = ArgumentParser(
        prog="pfl-fit",
        description="Train a personalized federation. A value on the command line wins over one in a file.",
        exit_on_error=False,
        allow_abbrev=False,
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
    parser.add_argument(
        "--resume",
        type=str | None,
        default=None,
        help="Directory of a run to continue; auto: start in run_dir or continue there.",
    )
    return parser


def parse(parser: ArgumentParser, argv: list[str]) -> Namespace:
    """Parse, or raise a `ConfigError` of one line."""
    words = [*stored_config(argv), *expand(argv)]
    for key in ("task", "data"):
        # else a class that is named would inherit those settings of the default class that have the same name
        if named := first_class(words, key):
            with suppress(ValueError, ImportError, AttributeError):  # no such class: the parser says so below
                parser.set_defaults({key: {"class_path": named}})
    try:
        return parser.parse_args(words)
    except ArgumentError as error:
        raise ConfigError(explain(str(error), parser)) from error


def first_class(words: list[str], key: str) -> str | None:
    """The first class that an expanded command line names for a key."""
    for option, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = option.partition("=")
        if name == f"--{key}":
            return value if equals else following
        if option == "--config":
            is_text = "\n" in following  # a whole config, as `--resume` gives it
            content = yaml.safe_load(following if is_text else Path(following).read_text()) or {}
            chosen = content.get(key)
            chosen = chosen.get("class_path") if isinstance(chosen, dict) else chosen
            if isinstance(chosen, str):
                return chosen
    return None


def complete(parser: ArgumentParser, text: str) -> str:
    """A resolved config with the settings that did not exist when it was written; as it is where it no longer fits."""
    try:
        config: str = parser.dump(parser.parse_string(text))
    except ArgumentError:
        return text
    return config


def instantiate(parser: ArgumentParser, config: Namespace) -> dict[str, Any]:
    """Make the objects, one by one, so that an error can name the key it belongs to."""
    parts = {}
    for key in (*CLASSES, *GROUPS):
        try:
            parts[key] = parser.instantiate(Namespace(**{key: config[key]}))[key]  # type: ignore[no-untyped-call]
        except (ValueError, TypeError) as error:
            raise ConfigError(full_key(str(error), key, config[key])) from error
    return parts
