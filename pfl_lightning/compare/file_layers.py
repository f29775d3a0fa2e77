"""Experiment files on top of each other: a file that extends another one, and the variants of a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pfl_lightning.compare.file_checks import as_mapping
from pfl_lightning.foundation.errors import ConfigError, require

MERGED = ("set", "report", "variants")
"""Keys whose settings are merged. All others are replaced as a whole, except `methods`."""


def layered(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One content from those of a file and of all files that it extends, the most general one first.

    Later files win. `set` and `report` are merged key by key, `methods` label by label. A name is not inherited.
    """
    content: dict[str, Any] = {}
    for layer in layers:
        content = {key: value for key, value in content.items() if key != "name"}
        content = _over(content, layer)
    return content


def with_variant(content: Mapping[str, Any], variant: str | None, default_name: str) -> dict[str, Any]:
    """The content with a variant on top. Its name and its caption say so.

    Args:
        content: of the file.
        variant: one of its `variants`. None: none of them.
        default_name: of a file that has no `name`.
    """
    variants = as_mapping(content.get("variants") or {}, "variants")
    plain = {key: value for key, value in content.items() if key != "variants"}
    if variant is None:
        return plain
    if variant not in variants:
        known = f"use {' | '.join(variants)}" if variants else "the experiment has no variants"
        raise ConfigError(f"--variant: {variant!r} is not allowed; {known}")
    where = f"variants.{variant}"
    changes = dict(as_mapping(variants[variant], where))
    words = str(changes.pop("caption", "") or "").strip()
    require(bool(words), f"{where}.caption", words, "a text that says what differs from the full experiment")
    require("name" not in changes, where, "name", "a variant without a name; its label is added to the experiment's")
    result = _over(plain, changes)
    result["name"] = f"{plain.get('name') or default_name}-{variant}"
    result["caption"] = f"{words} {plain.get('caption') or ''}".strip()
    return result


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    result = {**below, **above}
    for key in MERGED:
        if key in below and key in above:
            result[key] = {**as_mapping(below[key] or {}, key), **as_mapping(above[key] or {}, key)}
    if "methods" in below and "methods" in above:
        result["methods"] = _methods(below["methods"], above["methods"])
    return result


def _methods(below: object, above: object) -> dict[str, Any]:
    """Rows of both, with the settings of both."""
    rows = dict(_labelled(below))
    for label, settings in _labelled(above).items():
        known, new = rows.get(label), settings
        both = isinstance(known, Mapping) and isinstance(new, Mapping)
        rows[label] = {**known, **new} if both else known if new is None else new  # type: ignore[dict-item]
    return rows


def _labelled(methods: object) -> Mapping[str, Any]:
    return dict.fromkeys(map(str, methods)) if isinstance(methods, list) else as_mapping(methods, "methods")
