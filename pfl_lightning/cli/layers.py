"""A command line as layers of settings: each config file is one, each option is one, later layers win.

A class named on the command line starts from its own defaults. If it replaces another class, the settings that
earlier layers gave to the other class are dropped, and `Dropped` says so. A file that extends another one may name
another class and keep the settings that both classes have: sharing them is the purpose of `extends`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pfl_lightning.cli.classes import BASES, find_class, proper_name
from pfl_lightning.cli.extends import config_files, options, parse_yaml
from pfl_lightning.cli.listed import LISTED, METRICS, complete_list, complete_option, takes_metrics
from pfl_lightning.foundation.errors import ConfigError

UNSHARED = ("algorithm", "task.optimizer")
"""Keys whose class never keeps the settings of another class."""


@dataclass
class Layer:
    """One config file, or one option of the command line."""

    content: dict[str, Any] = field(default_factory=dict)
    """Keys and values of a file. Empty for an option."""
    words: list[str] = field(default_factory=list)
    """An option and its value. Empty for a file."""
    origin: int = 0
    """A number for the option that brought this layer. A file and the files it extends have the same."""

    @property
    def key(self) -> str:
        """The key of an option, such as `algorithm.quantile`."""
        return self.words[0].removeprefix("--").partition("=")[0] if self.words else ""

    @property
    def value(self) -> str:
        """The value of an option, or an empty text."""
        _, equals, value = self.words[0].partition("=")
        return value if equals else "".join(self.words[1:2])


class Dropped(NamedTuple):
    """Settings of a class that another class has replaced."""

    key: str
    old: str
    new: str
    settings: dict[str, Any]

    def __str__(self) -> str:
        """One line for the user."""
        listed = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        return f"{listed} (of {self.old}; {self.new} starts from its own defaults)"


@dataclass
class Settings:
    """The layers of a command line after every class was found."""

    words: list[str]
    """For the parser: one word per option, and the text of each file after `--config`."""
    classes: dict[str, str]
    """Key to the class named last for it."""
    dropped: list[Dropped]
    replaced: set[str]
    """Keys whose class in a file was replaced by another one on the command line."""


def read_layers(words: list[str]) -> list[Layer]:
    """Split a command line into layers. A config that contains a line break is the text itself, not a path."""
    layers: list[Layer] = []
    for origin, (option, config) in enumerate(options(words)):
        if config is not None:
            contents = [parse_yaml(config, "the stored config")] if "\n" in config else config_files(Path(config))
            layers += [Layer(content=content, origin=origin) for content in contents]
        elif option.startswith("--") or not layers or not layers[-1].words:
            layers.append(Layer(words=[option], origin=origin))
        else:
            layers[-1].words.append(option)
    return layers


def resolve_settings(words: list[str]) -> Settings:
    """Find all classes, correct the case of their names, and drop the settings of classes that were replaced."""
    layers = read_layers(words)
    settings, origins = Settings([], {}, [], set()), dict[str, int]()
    for position, layer in enumerate(layers):
        known = settings.classes
        named = _classes_in(layer.content, known) if layer.content else _class_of_option(layer, known)
        for key, name in named.items():
            keeps = key not in UNSHARED and origins.get(key) == layer.origin
            origins[key] = layer.origin
            _enter(settings, [] if keeps else layers[:position], key, name, on_command_line=bool(layer.words))
    for layer in layers:
        settings.words += layer.words or (["--config", yaml.safe_dump(layer.content)] if layer.content else [])
    return settings


def _enter(settings: Settings, earlier: list[Layer], key: str, name: str, on_command_line: bool) -> None:
    """Note that `name` is the class for `key` from now on, and drop what `earlier` layers say about another class."""
    old = settings.classes.get(key)
    found = find_class(key, name)
    if earlier and old is not None and find_class(key, old) is not found:
        lost: dict[str, Any] = {}
        for layer in earlier:
            lost |= _remove(layer, key)
        if lost:
            settings.dropped.append(Dropped(key, old.rpartition(".")[2], name.rpartition(".")[2], lost))
        if on_command_line:
            settings.replaced.add(key)
        for below in [other for other in settings.classes if other.startswith(f"{key}.")]:
            del settings.classes[below]
    settings.classes[key] = name


def _class_of_option(layer: Layer, known: dict[str, str]) -> dict[str, str]:
    """The class that an option names: `--task.net MLP`, `--task.net.class_path MLP` or `--task.net {class_path: …}`."""
    key = layer.key.removesuffix(".class_path")
    if _lists_classes(key.removesuffix("+"), known) and layer.value:
        layer.words = [f"--{key}={complete_option(key.removesuffix('+'), layer.value)}"]
        return {}
    if key not in BASES or not layer.value:
        return {}
    if layer.value.lstrip().startswith("{"):
        return _classes_in({key: parse_yaml(layer.value, f"--{key}")}, known)
    name = proper_name(key, layer.value)
    rest = layer.words[1 if "=" in layer.words[0] else 2 :]
    layer.words = [f"--{layer.key}={name}", *rest]
    return {key: name}


def _lists_classes(key: str, known: dict[str, str]) -> bool:
    """Whether the value of a key is a list of classes. `known` are the classes for other keys."""
    return key in LISTED or (key == METRICS and takes_metrics(known.get("task", "")))


def _classes_in(content: dict[str, Any], known: dict[str, str], above: str = "") -> dict[str, str]:
    """All classes that a config names, by key. Their names are corrected in place."""
    found: dict[str, str] = {}
    for name, value in content.items():
        key = f"{above}{name}"
        if _lists_classes(key, known):
            content[name] = complete_list(key, value)
        elif isinstance(value, str) and key in BASES:
            content[name] = found[key] = proper_name(key, value)
        elif isinstance(value, dict):
            path = value.get("class_path", "")
            if key in BASES and not isinstance(path, str):
                raise ConfigError(f"{key}.class_path: {path!r} is not the name of a class")
            if path and (key in BASES or "." in str(path)):  # of others, the parser knows whether there may be a class
                value["class_path"] = found[key] = proper_name(key, path)
            found |= _classes_in(_arguments(value), known | found, f"{key}.")
    return found


def _remove(layer: Layer, key: str) -> dict[str, Any]:
    """Take all settings below `key` out of a layer. Returns them, named relative to the key."""
    if layer.words:
        if not f"{layer.key}.".startswith(f"{key}."):
            return {}
        name, value = layer.key.removeprefix(key).lstrip("."), layer.value
        layer.words = []
        return {name: value} if name not in ("", "class_path") else {}
    *parents, last = key.split(".")
    holder: Any = layer.content
    for parent in parents:
        holder = holder.get(parent)
        holder = _arguments(holder) if isinstance(holder, dict) else {}
    removed = holder.pop(last, None)
    return _flat(removed) if isinstance(removed, dict) else {}


def _flat(value: dict[str, Any], above: str = "") -> dict[str, Any]:
    """The settings of a class as `partition.alpha: 0.5`. A nested class is the value of its own key."""
    settings: dict[str, Any] = {}
    for name, inner in _arguments(value).items():
        if name == "class_path":
            continue
        if isinstance(inner, dict):
            if "class_path" in inner:
                settings[f"{above}{name}"] = str(inner["class_path"]).rpartition(".")[2]
            settings |= _flat(inner, f"{above}{name}.")
        else:
            settings[f"{above}{name}"] = inner
    return settings


def _arguments(value: dict[str, Any]) -> dict[str, Any]:
    """The settings of a class in a config, which may be written without `init_args`."""
    arguments = value.get("init_args")
    return arguments if isinstance(arguments, dict) else value
