"""Whether a run may continue with another config: only if the difference cannot change its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

import yaml

from pfl_lightning.foundation.errors import ConfigError

HARMLESS = (
    "loop.rounds", "loop.balance_by", "fabric.devices", "fabric.num_nodes", "fabric.timeout", "fabric.reuse_memory",
    "run_dir", "resume", "trust", "checkpoint", "store", "callbacks", "loggers", "data.root", "data.download",
)  # fmt: skip
"""Keys that may differ, and all keys below them. `report` is not among them: a record of some rounds would look like
one of all."""


def refuse_differences(old: str, new: str, complete: Callable[[str], str] = str) -> None:
    """Raise a `ConfigError` that names the keys by which two resolved configs differ, harmless ones excepted.

    Args:
        old: the config of the run directory, YAML.
        new: the config of this command, YAML.
        complete: adds defaults to a config. It imports the classes that the config names, so it never gets the config
            of the directory: to find the defaults of settings that did not exist when the run was started, it gets the
            command's own config without them.
    """
    before, after = _relevant(old), _relevant(new)
    _refuse(before.keys(), before, after)
    if missing := after.keys() - before.keys():
        before = _relevant(complete(yaml.safe_dump(_without(missing, yaml.safe_load(new)))))
        _refuse(before.keys() | after.keys(), before, after)


def _refuse(keys: Set[str], before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    changed = [key for key in sorted(keys) if before.get(key) != after.get(key)]
    if changed:
        changes = ", ".join(f"{key} (was {before.get(key)}, now {after.get(key)})" for key in changed)
        raise ConfigError(
            f"resume: the run was started with another config: {changes}; use the same config or a new run_dir"
        )


def _relevant(text: str) -> dict[str, Any]:
    """The settings that must not change, by their full key."""
    flat = flatten(yaml.safe_load(text))
    return {key: flat[key] for key in flat if not any(key == h or key.startswith(f"{h}.") for h in HARMLESS)}


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Nested keys to values, named as on the command line: `algorithm.quantile`, not `algorithm.init_args.quantile`."""
    if not isinstance(config, dict):
        return {prefix: config}
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if key == "init_args" and not value:
            continue
        flat |= flatten(value, _name(key, prefix))
    return flat


def _name(key: str, prefix: str) -> str:
    return prefix if key in ("class_path", "init_args") else f"{prefix}.{key}" if prefix else str(key)


def _without(names: Set[str], config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested config without the settings of these full keys, and without branches left empty."""
    kept = {}
    for key, value in config.items():
        name = _name(key, prefix)
        inner = _without(names, value, name) if isinstance(value, dict) else value
        if inner if isinstance(value, dict) else name not in names:
            kept[key] = inner
    return kept
