"""The contents of TensorBoard: fewer than 20 curves, a layout with the reported metric first, and a tab of settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from pfl_lightning.metrics.record import Metric

PLAIN = ("seconds", "personal_share", "up_bytes", "down_bytes")
"""Columns without a metric that have a curve."""
SETTINGS = ("algorithm", "data", "task", "loop", "seed")
"""Parts of the config that the tab HParams shows."""


def has_curve(column: str, metrics: Sequence[Metric]) -> bool:
    """Whether TensorBoard draws a column of metrics.csv: means of the main metric, its worst tenth, and plain facts.

    metrics.csv has all columns, personal.csv the shares of single layers, and `pfl-report` draws them.
    """
    if column in PLAIN or column.startswith("train_"):
        return True
    parts = metrics[0].split(column)
    if parts is None:
        return False
    return not parts[1].endswith(("_pooled", "_worst10")) or parts == ("all", "before_worst10")


def layout(metrics: Sequence[Metric]) -> dict[str, dict[str, list[Any]]]:
    """The tab Custom Scalars: the reported metric of all runs first, then cost."""
    label = metrics[0].label
    charts = {
        f"{label}, all clients, before local training": [f"^{label}_all/before$"],
        f"{label}, all clients, after local training": [f"^{label}_all/after$"],
        f"{label}, worst tenth of the clients": [f"^{label}_all/before_worst10$"],
        f"{label}, plain global model": [f"^{label}_all/global$"],
    }
    cost = {"bytes of a round": ["^traffic/"], "seconds of a round": ["^time/round$"]}
    parts = {"1. reported": charts, "2. cost": cost}
    return {part: {title: ["Multiline", tags] for title, tags in own.items()} for part, own in parts.items()}


def settings(config_text: str) -> dict[str, bool | int | float | str]:
    """The settings of a run as flat keys, for the tab HParams."""
    config = yaml.safe_load(config_text)
    if not isinstance(config, dict):
        return {}
    flat = _flat({key: config[key] for key in SETTINGS if key in config})
    return {key: value if isinstance(value, bool | int | float | str) else str(value) for key, value in flat.items()}


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = prefix if key in ("class_path", "init_args") else f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping):
            found |= _flat(value, name)
        else:
            found[name] = value.rpartition(".")[2] if key == "class_path" else value
    return found
