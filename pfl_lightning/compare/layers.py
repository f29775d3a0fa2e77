"""Config files on top of each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def merge(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Nested configs in one. Later layers win, and a class starts from its own defaults.

    Where a later layer names another class, the earlier class' settings are dropped, also those that have the same
    name in both.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = _over(merged, layer)
    return merged


def class_name(config: Mapping[str, Any], key: str) -> str | None:
    """The class that a config names for a key, without its module: `FedAvg`."""
    node = _node(config.get(key))
    path = node.get("class_path") if node else None
    return path.rpartition(".")[2] if isinstance(path, str) else None


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        known = result.get(key)
        old, new = _node(known), _node(value)
        plain = isinstance(known, str) and isinstance(value, str)
        result[key] = value if plain or old is None or new is None or not _fit(old, new) else _over(old, new)
    return result


def _node(value: Any) -> Mapping[str, Any] | None:
    """`algorithm: FedAvg` is short for `algorithm: {class_path: FedAvg}`."""
    return {"class_path": value} if isinstance(value, str) else value if isinstance(value, Mapping) else None


def _fit(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether both are plain groups of keys, or settings of the same class."""
    if "class_path" not in new:
        return True
    return class_name({"it": old}, "it") == class_name({"it": new}, "it")
