"""The `methods` and `report` of an experiment file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfl_lightning.compare.experiment import SELECTS, Method, Report
from pfl_lightning.compare.file_checks import (
    as_keys,
    as_labels,
    as_mapping,
    as_number,
    check_key,
    find_file,
    is_whole,
    only_known,
)
from pfl_lightning.compare.layers import merge
from pfl_lightning.foundation.errors import ConfigError, require

REPORT = ("metric", "select", "better", "target", "digits")


def methods_from(content: object, folder: Path) -> list[Method]:
    """The rows of the table: a list of labels, or labels with their settings."""
    if isinstance(content, list):
        content = dict.fromkeys(as_labels(content, "methods"))
    content = {str(label): settings for label, settings in as_mapping(content, "methods").items()}
    require(bool(content), "methods", content, "at least one label")
    return [_method(label, content, folder) for label in content]


def report_from(content: object, where: str) -> Report:
    """The `report` of an experiment or of one of its methods."""
    content = as_mapping(content, where)
    only_known(content, REPORT, f"{where}.")
    metric, select, better, target, digits = (content.get(key) for key in REPORT)
    require(metric is None or isinstance(metric, str), f"{where}.metric", metric, "a column of metrics.csv")
    require(select is None or select in SELECTS, f"{where}.select", select, " | ".join(SELECTS))
    require(better in (None, "higher", "lower"), f"{where}.better", better, "higher | lower")
    require(digits is None or is_whole(digits), f"{where}.digits", digits, "a whole number >= 0")
    number = None if target is None else as_number(target, f"{where}.target")
    return Report(metric, select, better, number, digits)


def _method(label: str, content: Mapping[str, Any], folder: Path, above: tuple[str, ...] = ()) -> Method:
    """A method with all that it inherits from the method or file that it extends."""
    where = f"methods.{label}"
    if label in above:
        raise ConfigError(f"{where}.extends: {label} extends itself, by way of {' → '.join(above)}")
    own = dict(as_mapping(content[label] or {}, where))
    extends, report, at = (own.pop(key, None) for key in ("extends", "report", "at"))
    parent = Method(label)
    if extends in content:
        parent = _method(extends, content, folder, (*above, label))
    elif extends is not None:
        parent = Method(label, find_file(extends, folder, f"{where}.extends"))
    for key in own:
        check_key(key, where)
    columns = as_mapping(at or {}, f"{where}.at")
    return Method(
        label,
        parent.extends,
        merge([parent.config, {key: value for key, value in own.items() if "." not in key}]),
        {**parent.keys, **{key: value for key, value in own.items() if "." in key}},
        report_from(report or {}, f"{where}.report").over(parent.report),
        {**parent.at, **{str(column): as_keys(keys, f"{where}.at.{column}") for column, keys in columns.items()}},
        root=parent.root if extends in content else label,
    )
