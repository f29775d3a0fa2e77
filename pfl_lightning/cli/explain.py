"""One clear line for each way to get a config wrong: the key, what is the matter, what is allowed."""

from __future__ import annotations

import difflib
import inspect
import re
from importlib import import_module
from typing import Any

from jsonargparse import ArgumentParser, Namespace

PACKAGES = {
    "algorithm": ("pfl_lightning.algorithms", "pfl_lightning.algorithm.Algorithm"),
    "task": ("pfl_lightning.tasks", "pfl_lightning.tasks.Task"),
    "task.net": ("pfl_lightning.nets", "pfl_lightning.nets.Net"),
    "task.optimizer": ("torch.optim", "torch.optim.Optimizer"),
    "data": ("pfl_lightning.data", "pfl_lightning.data.FederatedData"),
    "data.partition": ("pfl_lightning.data", "pfl_lightning.data.Partition"),
}
"""Where the classes for a key are found, and what they derive from."""


def explain(message: str, parser: ArgumentParser) -> str:
    """Turn the parser's nested message into one line."""
    key = ".".join(re.findall(r'Parser key "([^"]+)"', message))
    reason = " ".join(re.split(r'Parser key "[^"]+":', message)[-1].split())
    place = f"{key}: " if key else ""
    if match := re.search(r"Problem with given class_path '([^']+)': Option '([^']+)' is not accepted", reason):
        allowed = list(inspect.signature(_load(match[1])).parameters) or ["class_path with init_args"]
        return f"{key}.{match[2]}: {match[1].rsplit('.')[-1]} has no such option; use {_or(match[2], allowed)}"
    if match := re.search(r"Group '([^']+)' does not accept option '([^']+)'", reason):
        allowed = [dest.partition(".")[2] for dest in _keys(parser) if dest.startswith(f"{match[1]}.")]
        return f"{match[1]}.{match[2]}: no such key; use {_or(match[2], allowed)}"
    if match := re.search(
        r"(?:dot import path string: |import path format: |No module named |ImportError: )(\S+)", reason
    ):
        return f"{place}no class {match[1]}; use {_or(match[1], [*_classes(key), 'module.Class of your own'])}"
    if match := re.search(r"unrecognized arguments: (\S+)", reason):
        word = match[1].split("=")[0]
        known = [option for action in parser._actions for option in action.option_strings]
        near = difflib.get_close_matches(word, known, 1, 0.6)
        return f"{word}: no such option" + (f"; did you mean {near[0]}?" if near else "; see pfl-fit --help")
    if match := re.search(r"(?:Option|Key) '([^']+)' is not (?:accepted|expected)", reason):
        top = list(dict.fromkeys(dest.partition(".")[0] for dest in _keys(parser)))
        return f"{place}{match[1]}: no such key; use {_or(match[1], top)}"
    if match := re.search(r"following arguments are required: (.*)", reason):
        return f"{match[1]}: missing; give it on the command line or in a --config file"
    if match := re.search(r"Union subtypes Subtypes: \[(.*?)\] Errors:.*Given value: (.*)", reason):
        return f"{place}{match[2]!r} is not allowed; use {_type(match[1].replace(', ', ' or '))}"
    if match := re.search(r"Expected a (.*)\. Got value: (.*)", reason):
        return f"{place}{match[2]!r} is not allowed; use {_type(match[1])}"
    return place + _type(reason)


def full_key(message: str, group: str, config: Namespace) -> str:
    """Complete the key that a class' own check named: `alpha: …` in data becomes `data.partition.alpha: …`."""
    name = message.partition(":")[0]
    if name.partition(".")[0] == group:
        return message
    return ".".join([group, *(_path(name, config) or []), message])


def _path(name: str, config: Any) -> list[str] | None:
    """The keys above `name` in a class' config, without `init_args`, or None."""
    if not isinstance(config, Namespace):
        return None
    settings = config.get("init_args", config)
    if not isinstance(settings, Namespace):
        return None
    if name in settings:
        return []
    paths = ((key, _path(name, value)) for key, value in vars(settings).items())
    return next(([key, *path] for key, path in paths if path is not None), None)


def _keys(parser: ArgumentParser) -> list[str]:
    """All keys of a config."""
    skip = ("help", "config", "print_config", "print_shtab")
    return [a.dest for a in parser._actions if a.dest not in skip and not a.dest.endswith(".help")]


def _or(word: str, allowed: list[str]) -> str:
    """The allowed words, the likeliest first."""
    near = difflib.get_close_matches(word, allowed, 1, 0.4)
    return " | ".join([*near, *(other for other in allowed if other not in near)])


def _classes(key: str) -> list[str]:
    """Names of the classes that fit a key."""
    if key not in PACKAGES:
        return []
    package, root = import_module(PACKAGES[key][0]), _load(PACKAGES[key][1])
    names = getattr(package, "__all__", dir(package))
    found = {name: getattr(package, name) for name in names}
    return [n for n, c in found.items() if inspect.isclass(c) and issubclass(c, root) and c is not root]


def _load(path: str) -> type:
    module, name = path.rsplit(".", 1)
    found: type = getattr(import_module(module), name)
    return found


def _type(text: str) -> str:
    """Types as people say them."""
    text = re.sub(r"<class '([^']+)'>", r"\1", text)
    text = re.sub(r"(?:typing\.)?Literal\[([^\]]*)\]", lambda m: m[1].replace("'", "").replace(", ", " | "), text)
    for name, words in {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}.items():
        text = re.sub(rf"\b{name}\b", words, text)
    return text
