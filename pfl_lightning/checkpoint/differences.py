"""Whether a run may be continued with another config: only where that cannot alter its history."""

from __future__ import annotations

from typing import Any

import yaml

from pfl_lightning.errors import ConfigError

HARMLESS = (
    "loop.rounds", "loop.balance_by", "fabric.devices", "fabric.num_nodes", "fabric.timeout", "fabric.reuse_memory",
    "run_dir", "resume", "checkpoint", "store", "report", "data.root", "data.download",
)  # fmt: skip
"""Keys that may differ, with all below them."""


def refuse_differences(old: str, new: str) -> None:
    """Raise a `ConfigError` that names the keys by which two resolved configs differ in more than harmless ways."""
    before, after = flatten(yaml.safe_load(old)), flatten(yaml.safe_load(new))
    keys = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
    keys = [key for key in keys if not any(key == h or key.startswith(f"{h}.") for h in HARMLESS)]
    if keys:
        changes = ", ".join(f"{key} (was {before.get(key)}, now {after.get(key)})" for key in keys)
        raise ConfigError(f"resume: the run was started with another config: {changes}; use the same, or a new run_dir")


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Nested keys to values, named as on the command line: `algorithm.quantile`, not `algorithm.init_args.quantile`."""
    if not isinstance(config, dict):
        return {prefix: config}
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if key == "init_args" and not value:
            continue
        name = prefix if key in ("class_path", "init_args") else f"{prefix}.{key}" if prefix else str(key)
        flat |= flatten(value, name)
    return flat
