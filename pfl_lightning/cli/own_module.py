"""A user's LightningModule as `task`: it is made inside the seeded block, with facts about the data filled in."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import yaml
from jsonargparse import ArgumentParser
from lightning import LightningModule

from pfl_lightning.tasks.data_facts import NAMES
from pfl_lightning.tasks.task import Task

KEY = "task"


def accept_module(parser: ArgumentParser, found: Any, words: list[str]) -> None:
    """Let `--task` take a LightningModule other than a `Task`.

    The parser then returns a function that makes the module. Parameters that the data fills in are no options, except
    those that the command line gives a value.

    Args:
        parser: the parser of the command.
        found: the class named for `task`.
        words: the options, and the text of each config file after `--config`.
    """
    if inspect.isclass(found) and issubclass(found, LightningModule) and not issubclass(found, Task):
        filled = [name for name in NAMES if name not in given_settings(words)]
        action = next(action for action in parser._actions if action.dest == KEY)
        action._typehint = module_factory(filled)  # type: ignore[attr-defined]


def given_settings(words: list[str]) -> set[str]:
    """The names of all settings of the task on a command line."""
    names: set[str] = set()
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--config":
            chosen = (yaml.safe_load(following) or {}).get(KEY)
            if isinstance(chosen, dict):
                names |= chosen.keys() | (chosen.get("init_args") or {}).keys()
        elif word.startswith(f"--{KEY}."):
            names.add(word.partition("=")[0].removeprefix(f"--{KEY}.").removeprefix("init_args.").partition(".")[0])
    return names


def module_factory(filled: list[str]) -> type:
    """The type of a function that makes a LightningModule and supplies these parameters itself."""

    class ModuleFactory(Protocol):
        def __call__(self, **facts: Any) -> LightningModule: ...

    facts = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=Any) for name in filled]
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.Signature([itself, *facts], return_annotation=LightningModule)
    call: Any = ModuleFactory.__call__
    call.__signature__ = signature
    call.__annotations__ = {**dict.fromkeys(filled, Any), "return": LightningModule}
    return ModuleFactory
