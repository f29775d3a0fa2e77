"""Classes by name: which ones fit a key, and one clear line for a name that leads nowhere."""

from __future__ import annotations

import difflib
import inspect
import os
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from pfl_lightning.cli.failure import describe
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.tasks.data_facts import NAMES as FACTS


class Base(NamedTuple):
    """Where the classes for a key come from."""

    package: str
    """Its public classes are offered by their short names."""
    path: str
    """The class that all of them derive from."""
    given: int = 0
    """Number of leading constructor arguments that the package supplies itself."""
    unfinished: tuple[str, ...] = ()
    """Public classes that only serve to derive others from."""
    accepts: str = ""
    """The class that users' own classes derive from. Default: `path`."""
    filled: tuple[str, ...] = ()
    """Names of constructor arguments that the package supplies itself."""
    advice: str = ""
    """What to do with a class that does not fit."""


BASES = {
    "algorithm": Base("pfl_lightning.algorithms", "pfl_lightning.algorithm.Algorithm"),
    "task": Base(
        "pfl_lightning.tasks",
        "pfl_lightning.tasks.Task",
        accepts="lightning.LightningModule",
        advice="LightningTask takes a function that makes one as its module",
    ),
    "task.net": Base("pfl_lightning.nets", "pfl_lightning.nets.Net", accepts="torch.nn.Module", filled=FACTS),
    "task.optimizer": Base("torch.optim", "torch.optim.Optimizer", given=1),
    "data": Base(
        "pfl_lightning.data",
        "pfl_lightning.data.FederatedData",
        unfinished=("ImageData",),
        advice="FromDataset takes any torch Dataset",
    ),
    "data.partition": Base("pfl_lightning.data", "pfl_lightning.data.Partition"),
    "callbacks": Base("pfl_lightning.callback", "pfl_lightning.callback.Callback"),
    "loggers": Base("lightning.pytorch.loggers", "lightning.pytorch.loggers.Logger"),
}


@cache
def base_class(key: str) -> type:
    """The class from which the package's own classes for a key derive."""
    return _class_at(BASES[key].path)


@cache
def accepted_classes() -> tuple[type, ...]:
    """The classes from which all classes derive that a config may name."""
    return tuple(_class_at(base.accepts or base.path) for base in BASES.values())


@cache
def _class_at(path: str) -> type:
    module, _, name = path.rpartition(".")
    found: type = getattr(import_module(module), name)
    return found


@cache
def offered(key: str) -> dict[str, type]:
    """The package's own classes for a key, by short name and in alphabetical order."""
    if key not in BASES:
        return {}
    package, base = import_module(BASES[key].package), base_class(key)
    names = sorted(getattr(package, "__all__", dir(package)), key=str.lower)
    found = {name: getattr(package, name) for name in names}
    fits = {name: c for name, c in found.items() if inspect.isclass(c) and issubclass(c, base) and c is not base}
    return {name: c for name, c in fits.items() if name not in BASES[key].unfinished}


def proper_name(key: str, name: str) -> str:
    """The name with the case of the class that it means: `fedobp` becomes `FedOBP`."""
    if "." in name or name in offered(key):
        return name
    return next((known for known in offered(key) if known.lower() == name.lower()), name)


def full_path(key: str, name: str) -> str:
    """The name of a class with its module."""
    if "." in name:
        return name
    if name in offered(key):
        return f"{BASES[key].package}.{name}"
    found = find_class(key, name)
    return f"{found.__module__}.{found.__qualname__}"


def find_class(key: str, name: str) -> Any:
    """The class, or a function that makes an object, with this name. Raises a `ConfigError` if there is none."""
    if "." in name:
        found = _import(key, name)
    elif name in offered(key):
        return offered(key)[name]
    else:
        found = next((c for c in _below(base_class(key)) if c.__name__ == name), None) if key in BASES else None
    if found is None:
        raise ConfigError(f"{key}: no class {name}; use {suggest(name, [*offered(key), 'module.Class of your own'])}")
    if key in BASES and not _fits(key, found):
        advice = f"; {BASES[key].advice}" if BASES[key].advice else ""
        raise ConfigError(f"{key}: {name} is not a subclass of {BASES[key].accepts or BASES[key].path}{advice}")
    return found


def suggest(word: str, allowed: Iterable[str]) -> str:
    """The allowed words, the most similar one first. The case of letters does not count."""
    allowed = list(allowed)
    near = closest(word, allowed, 0.4)
    return " | ".join([*near, *(other for other in allowed if other not in near)])


def closest(word: str, allowed: Iterable[str], cutoff: float) -> list[str]:
    """The most similar word in a list, or an empty list."""
    by_lower = {other.lower(): other for other in reversed(list(allowed))}
    return [by_lower[match] for match in difflib.get_close_matches(word.lower(), by_lower, 1, cutoff)]


def _fits(key: str, found: Any) -> bool:
    if inspect.isclass(found):
        return issubclass(found, _class_at(BASES[key].accepts or BASES[key].path))
    return bool(BASES[key].given or BASES[key].filled) and callable(found)


def _below(base: type) -> Iterator[type]:
    children: list[type] = base.__subclasses__()
    for child in children:
        yield child
        yield from _below(child)


def _import(key: str, name: str) -> Any:
    """Import `module.Class`. A class may be nested in another one."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        raise ConfigError(f"{key}: {name!r} is not the name of a class; use a short name or module.Class")
    for length in range(len(parts) - 1, 0, -1):
        module = _module(key, ".".join(parts[:length]))
        if module is not None:
            break
    else:
        here = f"in {os.getcwd()}" if os.getcwd() in sys.path else "(in a resumed run also here, with --trust)"
        raise ConfigError(f"{key}: no module {parts[0]} beside the config, {here} or on Python's path")
    found = module
    for part in parts[length:]:
        if not hasattr(found, part):
            own = [n for n, c in vars(module).items() if inspect.isclass(c) and c.__module__ == module.__name__]
            place = getattr(module, "__file__", None) or module.__name__
            raise ConfigError(f"{key}: no class {part} in {place}; it has {suggest(part, own) or 'no classes'}")
        found = getattr(found, part)
    return found


def _module(key: str, name: str) -> Any:
    """The module, or None if there is none. An error inside it is reported as such."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            return None
        raise ConfigError(f"{key}: importing {name} failed: {describe(error)}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{key}: importing {name} failed: {describe(error)}") from error
