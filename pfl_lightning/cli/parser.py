"""The config: its keys and their types."""

from __future__ import annotations

from argparse import ArgumentError
from collections.abc import Mapping
from typing import Any, NamedTuple

from jsonargparse import ArgumentParser, Namespace, set_parsing_settings
from jsonargparse.typing import lazy_instance
from lightning.pytorch.loggers import Logger

import pfl_lightning.algorithms  # short names are found among the imported classes
import pfl_lightning.nets  # noqa: F401
from pfl_lightning.algorithm import Algorithm
from pfl_lightning.callback import Callback
from pfl_lightning.checkpoint import CheckpointConfig
from pfl_lightning.cli.classes import find_class, full_path
from pfl_lightning.cli.explain import explain, full_key
from pfl_lightning.cli.failure import describe
from pfl_lightning.cli.help import EXIT_CODES, PlainHelp, class_options, command_description
from pfl_lightning.cli.launch import FabricConfig
from pfl_lightning.cli.layers import Dropped, resolve_settings
from pfl_lightning.cli.own_module import accept_module
from pfl_lightning.cli.resumed_run import stored_config
from pfl_lightning.cli.untyped import accept_function, accept_untyped, check_untyped
from pfl_lightning.data import Fashion10k, FederatedData
from pfl_lightning.foundation.errors import ConfigError
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


class Command(NamedTuple):
    """A parsed command line."""

    config: Namespace
    dropped: list[Dropped]
    """Settings of classes that were replaced by another class."""
    replaced: set[str]
    """Keys whose class in a config file was replaced on the command line."""


def build_parser(with_help: bool = False) -> ArgumentParser:
    """The parser of `pfl-fit`.

    Args:
        with_help: whether options have their help texts. To find them takes longer than to read a config.
    """
    set_parsing_settings(docstring_parse_attribute_docstrings=with_help)
    parser = ArgumentParser(
        prog="pfl-fit",
        usage="pfl-fit [--config FILE.yaml] [--algorithm NAME] [--key value ...]",
        description=command_description(),
        epilog=EXIT_CODES,
        formatter_class=PlainHelp,
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument("--config", action="config", help="YAML file; several are merged in order.")
    parser.add_argument("--algorithm", type=Algorithm, required=True, help="How clients cooperate.")
    parser.add_argument("--task", type=Task, default=lazy_instance(Classification), help="What is learned.")
    parser.add_argument("--data", type=FederatedData, default=lazy_instance(Fashion10k), help="Who has what.")
    for key, config in GROUPS.items():
        parser.add_class_arguments(config, key)
    parser.add_argument("--callbacks", type=list[Callback], default=[], help="Code that follows the run.")
    parser.add_argument(
        "--loggers",
        type=list[Logger],
        default=[],
        help="Loggers of Lightning, beside the files of the run. Theirs go to the run directory by default.",
    )
    accept_untyped(parser, (*CLASSES, "callbacks"))
    parser.add_argument("--seed", type=int, default=0, help="The source of all randomness.")
    parser.add_argument(
        "--run_dir",
        type=str | None,
        default=None,
        help="Where files go. By default runs/<name>/<date-time>, named after the config file or the algorithm.",
    )
    parser.add_argument(
        "--resume",
        type=str | None,
        default=None,
        help="Directory of a run to continue; auto: start in run_dir or continue there.",
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="With --resume DIR, allow classes from outside the package that the run in DIR names: their code is run.",
    )
    return parser


def parse(parser: ArgumentParser, argv: list[str]) -> Namespace:
    """Parse, or raise a `ConfigError` of one line."""
    return read_command(parser, argv).config


def read_command(parser: ArgumentParser, argv: list[str]) -> Command:
    """Parse, and tell which settings were dropped. Raises a `ConfigError` of one line."""
    settings = resolve_settings([*stored_config(argv), *argv])
    chosen = {"task": "Classification", "data": "Fashion10k", **settings.classes}
    for key in ("task", "data"):
        parser.set_defaults({key: _default(key, chosen)})
    accept_module(parser, find_class("task", chosen["task"]), settings.words)
    if "task.net" in chosen:
        accept_function(find_class("task.net", chosen["task.net"]))
    try:
        config = parser.parse_args(settings.words)
    except ArgumentError as error:
        raise ConfigError(explain(str(error), parser, lambda: _class_options(chosen))) from error
    check_untyped(config)
    return Command(config, settings.dropped, settings.replaced)


def _default(key: str, chosen: Mapping[str, str]) -> dict[str, Any]:
    """A class and the classes below it without any settings.

    With the usual default they would inherit settings from the default class where these have the same name.
    """
    inner = [name for name in chosen if name.rpartition(".")[0] == key]
    nested = {name.rpartition(".")[2]: _default(name, chosen) for name in inner}
    return {"class_path": full_path(key, chosen[key]), **({"init_args": nested} if nested else {})}


def _class_options(chosen: Mapping[str, str]) -> list[str]:
    return [option for key in CLASSES if key in chosen for option in class_options(key, chosen[key], chosen)]


def complete(parser: ArgumentParser, text: str) -> str:
    """Add to a resolved config the settings that its version did not know. A config that does not fit is unchanged."""
    try:
        config: str = parser.dump(parser.parse_string(text))
    except ArgumentError:
        return text
    return config


def instantiate(parser: ArgumentParser, config: Namespace) -> dict[str, Any]:
    """Make the objects, one by one, so that an error can name the key it belongs to."""
    parts = {}
    for key in (*CLASSES, *GROUPS, "callbacks"):
        try:
            parts[key] = parser.instantiate(Namespace(**{key: config[key]}))[key]  # type: ignore[no-untyped-call]
        except (ValueError, TypeError) as error:
            raise ConfigError(full_key(str(error), key, config[key])) from error
        except (Exception, SystemExit) as error:
            name = getattr(config[key], "class_path", "a class")
            raise ConfigError(f"{key}: {name} cannot be made: {describe(error)}") from error
    return parts
