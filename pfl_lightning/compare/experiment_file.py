"""From an experiment file to an `Experiment`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pfl_lightning.compare.experiment import CONTROLS, Experiment
from pfl_lightning.compare.file_checks import as_keys, as_labels, find_file, is_whole, matching, only_known
from pfl_lightning.compare.file_grid import columns_from, paper_from
from pfl_lightning.compare.file_methods import methods_from, report_from
from pfl_lightning.compare.file_search import search_from
from pfl_lightning.foundation.errors import require

KEYS = ("name", "base", "set", "methods", "rows", "grid", "columns", "seeds", "partition_seed", "report", "paper",
        "caption", "controls", "search")  # fmt: skip


def experiment_from(content: Mapping[str, Any], path: Path) -> Experiment:
    """Check the content of an experiment file. Raises a `ConfigError` of one line.

    Args:
        content: its keys and values.
        path: where it is. Files that it names are looked for in its folder, then in the working directory.
    """
    only_known(content, KEYS)
    methods = methods_from(content.get("methods") or {}, path.parent)
    columns = columns_from(content.get("grid") or {}, path.parent)
    column_labels = [column.label for column in columns]
    for method in methods:
        for label in method.at:
            require(label in column_labels, f"methods.{method.label}.at", label, " | ".join(column_labels))
    controls = as_labels(content.get("controls", list(CONTROLS)) or [], "controls")
    labels = [*(method.label for method in methods), *controls]
    experiment = Experiment(
        name=str(content.get("name") or path.stem),
        methods=tuple(methods),
        base=find_file(content["base"], path.parent, "base") if content.get("base") else None,
        set=as_keys(content.get("set") or {}, "set"),
        columns=tuple(columns),
        seeds=seeds_from(content.get("seeds", [0])),
        partition_seed=_partition_seed(content.get("partition_seed", 0)),
        report=report_from(content.get("report") or {}, "report"),
        paper=paper_from(content.get("paper") or {}, labels, column_labels),
        caption=str(content.get("caption") or "").strip(),
        controls=tuple(controls),
        search=search_from(content["search"], labels) if content.get("search") else None,
    )
    return _only(experiment, content.get("rows"), content.get("columns"))


def seeds_from(value: object) -> tuple[int, ...]:
    """Seeds: one or more different whole numbers."""
    seeds = value if isinstance(value, list | tuple) else [value]
    fine = bool(seeds) and all(is_whole(seed) for seed in seeds) and len(set(seeds)) == len(seeds)
    require(fine, "seeds", value, "different whole numbers >= 0, such as [0, 1, 2]")
    return tuple(seeds)


def _only(experiment: Experiment, rows: object, columns: object) -> Experiment:
    """The experiment with some of its methods and columns. None keeps all of them."""
    methods, kept = experiment.methods, experiment.columns
    if rows:
        labels = matching(as_labels(rows, "rows"), [method.label for method in methods], "rows")
        methods = tuple(method for method in methods if method.label in labels)
    if columns:
        labels = matching(as_labels(columns, "columns"), experiment.column_labels, "columns")
        kept = tuple(column for column in kept if column.label in labels)
    return replace(experiment, methods=methods, columns=kept)


def _partition_seed(value: object) -> int | None:
    if value == "run":
        return None
    require(is_whole(value), "partition_seed", value, "a whole number >= 0, or run for a new partition with each seed")
    return int(str(value))
