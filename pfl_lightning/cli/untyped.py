"""Users' code without types: parameters take any value, and must have one if they have no default."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from torch import nn

from pfl_lightning.cli.classes import find_class
from pfl_lightning.foundation.errors import ConfigError


def accept_untyped(parser: ArgumentParser, keys: Iterable[str]) -> None:
    """Let the classes for these keys have parameters without a type."""
    wanted = {*keys}
    for action in parser._actions:
        if action.dest in wanted:
            action.sub_add_kwargs = {"fail_untyped": False}  # type: ignore[attr-defined]


def accept_function(found: Any) -> None:
    """Let a function without a return type make a net. `make_net` checks the object that it returns."""
    if inspect.isfunction(found) and "return" not in found.__annotations__:
        found.__annotations__["return"] = nn.Module


def check_untyped(config: Namespace) -> None:
    """Refuse settings that nobody can make sense of.

    These are settings below a parameter without a type, and parameters without a type that have no value: the parser
    fills them with None.
    """
    for key, value in config.items(branches=True):
        if type(value).__name__ == "NestedArg":  # jsonargparse's own, and not public
            name = key.replace(".init_args", "")
            raise ConfigError(
                f"{name}.{value.key}: {name} has no settings; give it a type in the __init__ of its class"
            )
        if isinstance(value, Namespace):
            _check_entry(key, value)
        for position, entry in enumerate(value if isinstance(value, list) else ()):
            _check_entry(f"{key}[{position}]", entry)


def _check_entry(key: str, entry: Any) -> None:
    """Refuse a class whose parameter without a type and without a default has no value."""
    if not isinstance(entry, Namespace) or not isinstance(entry.get("class_path"), str):
        return
    settings = entry.get("init_args")
    for name, value in vars(settings).items() if isinstance(settings, Namespace) else ():
        if value is None:
            parameter = inspect.signature(find_class("", entry.class_path)).parameters.get(name)
            if parameter and parameter.annotation is parameter.empty and parameter.default is parameter.empty:
                raise ConfigError(f"{key.replace('.init_args', '')}.{name}: missing; give it a value")
