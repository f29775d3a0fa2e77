"""Full configs for `pfl-compare`, made by the parser of `pfl-fit`."""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

import pfl_lightning.algorithms
from pfl_lightning.algorithm import Algorithm
from pfl_lightning.cli.extends import config_files
from pfl_lightning.cli.parser import build_parser, parse
from pfl_lightning.compare.experiment import Keys
from pfl_lightning.compare.layers import merge
from pfl_lightning.tasks.logged_sums import direction
from pfl_lightning.tasks.net_task import metric_name
from pfl_lightning.tasks.task import Task


class ParserResolver:
    """Resolves configs exactly as `pfl-fit` does.

    A section of a config (`algorithm`, `data`, …) means the same beside any other section. So only configs with a new
    section are parsed: a table of 13 methods in 8 columns needs about 20 calls of the parser instead of 104.
    """

    def __init__(self) -> None:
        self._sections: dict[str, dict[str, str]] = {}
        """Name of a section → text written there → its meaning, as JSON."""
        self._files: dict[Path, dict[str, Any]] = {}

    def read(self, path: Path) -> dict[str, Any]:
        """A config file, on top of all files that it extends."""
        if path not in self._files:
            self._files[path] = {key: value for key, value in merge(config_files(path)).items() if key != "extends"}
        return self._files[path]

    def resolve(self, config: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
        """The full config of a run: all keys with their values, null included."""
        written = _written(config, keys)
        unknown = not self._sections or not written.keys() <= self._sections.keys()
        if unknown or any(written.get(name, "") not in known for name, known in self._sections.items()):
            for name, value in json.loads(self._parse(config, keys)).items():
                self._sections.setdefault(name, {})[written.get(name, "")] = json.dumps(value)
        return {name: json.loads(known[written.get(name, "")]) for name, known in self._sections.items()}

    def _parse(self, config: Mapping[str, Any], keys: Keys) -> str:
        parser = build_parser()
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(yaml.safe_dump(dict(config), sort_keys=False))
            file.flush()
            words = [f"--{key}={option_text(value)}" for key, value in keys.items()]
            parsed = parse(parser, ["--config", file.name, *words])
        return str(parser.dump(parsed, skip_unset=False, skip_validation=True, format="json"))

    def is_algorithm(self, name: str) -> bool:
        """Whether the package has a method of this name."""
        found = getattr(pfl_lightning.algorithms, name, None)
        return inspect.isclass(found) and issubclass(found, Algorithm)

    def directions(self, config: Mapping[str, Any]) -> tuple[Mapping[str, str], bool]:
        """The metrics of the config's task, the main one first, with `higher` or `lower`, and whether these are all."""
        task, own = _class_of(config["task"]), {}
        for metric in (config["task"].get("init_args") or {}).get("metrics") or ():
            kind = _class_of(metric)
            name = metric_name(kind.__name__)
            own[name] = direction(name, getattr(kind, "higher_is_better", None))
        better = getattr(task, "better", None)
        known = {**better, **own} if isinstance(better, Mapping) else own
        return known, bool(known) and issubclass(task, Task)


def _class_of(node: Mapping[str, Any]) -> type:
    module, _, name = str(node["class_path"]).rpartition(".")
    found: type = getattr(import_module(module), name)
    return found


def _written(config: Mapping[str, Any], keys: Keys) -> dict[str, str]:
    """Section → everything that a config and keys say about it, as text. The order of keys counts."""
    parts: dict[str, list[Any]] = {name: [value] for name, value in config.items()}
    for key, value in keys.items():
        parts.setdefault(key.partition(".")[0], []).append((key, value))
    return {name: repr(part) for name, part in parts.items()}


def option_text(value: Any) -> str:
    """A value as it is written after `--key=`."""
    return value if isinstance(value, str) else json.dumps(value)
