"""The identity of a cell: a hash of its resolved config."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

PLACEMENT = frozenset({"accelerator", "devices", "num_nodes", "timeout", "reuse_memory"})
"""Keys of `fabric` that say where a run takes place. They do not belong to its identity. The precision does."""
NOT_PART = frozenset({"run_dir", "resume", "trust"})
LATER: Mapping[str, Any] = {"callbacks": [], "loggers": [], "loop": {"test_every": 1}}
"""Keys that older runs do not have, with the values that describe these runs. Such a value is left out."""


def canonical(config: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved config without placement, without keys that are null and without empty `init_args`.

    A run's config.yaml leaves out null. It is never completed with defaults here, because a null that replaced a
    default would then turn into that default.
    """
    kept = {key: value for key, value in config.items() if key not in NOT_PART}
    fabric = kept.get("fabric")
    if isinstance(fabric, Mapping):
        kept["fabric"] = {key: value for key, value in fabric.items() if key not in PLACEMENT}
    cleaned: dict[str, Any] = _clean(_without(kept, LATER))
    return cleaned


def identity(config: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical config. Equal for configs with the same meaning, whatever their order of keys."""
    text = json.dumps(canonical(config), sort_keys=True, separators=(",", ":"), default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


def _without(config: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A config without the keys that have these values."""
    kept: dict[str, Any] = {}
    for key, value in config.items():
        if key in values and isinstance(value, Mapping) and isinstance(values[key], Mapping):
            kept[key] = _without(value, values[key])
        elif key not in values or type(value) is not type(values[key]) or value != values[key]:
            kept[key] = value
    return kept


def _clean(value: Any) -> Any:
    if isinstance(value, Mapping):
        items = {_key(key): _clean(item) for key, item in value.items() if item is not None}
        return {key: item for key, item in items.items() if not (key == "init_args" and item == {})}
    return [_clean(item) for item in value] if isinstance(value, list | tuple) else value


def _key(key: object) -> str:
    """JSON writes the keys 1 and "1" the same way. Keep them apart, and from a text that looks like the result."""
    return key if isinstance(key, str) and ":" not in key else f"{type(key).__name__}:{key!r}"
