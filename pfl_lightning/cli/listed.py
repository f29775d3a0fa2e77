"""Keys that list classes: `callbacks`, `loggers`, `task.metrics`. Names are checked before the parser sees them."""

from __future__ import annotations

import inspect
import json
from importlib import import_module
from typing import Any

import yaml

from pfl_lightning.cli.classes import closest, find_class, full_path, proper_name
from pfl_lightning.foundation.errors import ConfigError

LISTED = ("callbacks", "loggers")
METRICS = "task.metrics"
METRIC_PACKAGES = ("torchmetrics.classification", "torchmetrics.regression")
"""Their classes are known by their short names."""
RUN_DIR = "$RUN_DIR"
"""Stands for the run directory in the settings of loggers. Its name is known only when the run starts."""


def complete_list(key: str, value: Any) -> list[dict[str, Any]] | None:
    """The entries of a list of classes, each with its `class_path` and `init_args`. A single entry needs no list.

    `task.metrics` may be null, and stays so: a run's stored config must mean the config that it was started with.
    """
    if value is None and key == METRICS:
        return None
    entries = value if isinstance(value, list) else [] if value is None else [value]
    return [_complete_metric(entry) if key == METRICS else _complete(key, entry) for entry in entries]


def complete_option(key: str, text: str) -> str:
    """The same for the value of an option, such as `CSVLogger` or `[CSVLogger, WandbLogger]`."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{key}: {text!r} is not valid YAML; use a class or a list of classes") from error
    return json.dumps(complete_list(key, value))


def takes_metrics(task: str) -> bool:
    """Whether `task.metrics` lists classes of torchmetrics. In a module of the user's it may be anything."""
    return "." not in task or task.startswith("pfl_lightning.")


def _complete_metric(entry: Any) -> dict[str, Any]:
    entry = _as_mapping(METRICS, entry)
    name: str = entry["class_path"]
    if "." not in name:
        offered = {known: package for package in METRIC_PACKAGES for known in import_module(package).__all__}
        if name not in offered:
            near = closest(name, offered, 0.0)[0]
            raise ConfigError(f"{METRICS}: no class {name}; use {near} | another class of torchmetrics | module.Class")
        name = f"{offered[name]}.{name}"
    find_class(METRICS, name)
    return {**entry, "class_path": name}


def _as_mapping(key: str, entry: Any) -> dict[str, Any]:
    entry = {"class_path": entry} if isinstance(entry, str) else entry
    if not isinstance(entry, dict) or not isinstance(entry.get("class_path"), str):
        raise ConfigError(f"{key}: {entry!r} is not allowed; use the name of a class, or class_path and init_args")
    return entry


def _complete(key: str, entry: Any) -> dict[str, Any]:
    entry = _as_mapping(key, entry)
    name = proper_name(key, entry["class_path"])
    parameters = inspect.signature(find_class(key, name)).parameters
    settings = dict(entry.get("init_args") or {})
    folder = parameters.get("save_dir")
    if key == "loggers" and folder is not None and folder.default in (folder.empty, "."):
        settings.setdefault("save_dir", RUN_DIR)
    return {**entry, "class_path": full_path(key, name), "init_args": settings}
