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


class ParserResolver:
    """Resolves configs exactly as `pfl-fit` does, each of them once."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def read(self, path: Path) -> dict[str, Any]:
        """A config file, on top of all files that it extends."""
        layers = config_files(path)
        return {key: value for key, value in merge(layers).items() if key != "extends"}

    def resolve(self, config: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
        """The full config of a run: all keys with their values, null included."""
        key = repr((dict(config), dict(keys)))
        if key not in self._known:
            self._known[key] = self._resolve(config, keys)
        resolved: dict[str, Any] = json.loads(self._known[key])
        return resolved

    def _resolve(self, config: Mapping[str, Any], keys: Keys) -> str:
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

    def directions(self, config: Mapping[str, Any]) -> Mapping[str, str]:
        """The metrics of the config's task, the main one first, with `higher` or `lower`."""
        module, _, name = str(config["task"]["class_path"]).rpartition(".")
        better = getattr(getattr(import_module(module), name), "better", None)
        return better if isinstance(better, Mapping) else {}


def option_text(value: Any) -> str:
    """A value as it is written after `--key=`."""
    return value if isinstance(value, str) else json.dumps(value)
