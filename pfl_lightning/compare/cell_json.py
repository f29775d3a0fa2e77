"""The results of a cell as JSON, complete enough to make its comparison's table again without the run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pfl_lightning.compare.gradient_steps import FOR_STEPS
from pfl_lightning.compare.identity import identity
from pfl_lightning.compare.measurement import Measurement
from pfl_lightning.compare.run_facts import RunFacts, Values
from pfl_lightning.compare.trials import FILE as TRIALS
from pfl_lightning.foundation.errors import ConfigError

IN_EVERY_ROUND = ("round", "samples", "up_bytes", "down_bytes", "seconds")
"""Columns that are kept for every round. Others are kept for rounds in which all clients were evaluated."""
SUMMARY = ("algorithm", "data", "num_clients", "num_parameters", "model_sha256", "clients_sha256", "world_size",
           "seconds", "up_bytes", "down_bytes", "version", "git_commit", "command", "best_per_client_visits",
           "best_per_client_evaluations")  # fmt: skip


def as_json(measurement: Measurement) -> dict[str, Any]:
    """Everything about a cell that is worth keeping without its run directory."""
    summary, metric, facts = measurement.facts.summary, measurement.metric, measurement.facts
    clients = measurement.clients
    numbers = {
        "value": measurement.value,
        "worst_tenth": measurement.worst_tenth,
        "spread": measurement.spread,
        "best_on_test": measurement.best_on_test,
        "by_validation": measurement.by_validation,
        "steps_per_visit": measurement.steps_per_visit,
    }
    return {
        "method": measurement.cell.method,
        "column": measurement.cell.column,
        "seed": measurement.cell.seed,
        "id": measurement.cell.id,
        "metric": metric.column,
        "select": metric.select,
        "round": measurement.round,
        **{key: _number(number) for key, number in numbers.items()},
        "partition_sha256": facts.partition_sha256,
        "samples": facts.samples,
        "run": {key: summary[key] for key in SUMMARY if key in summary},
        "clients": None if clients is None else _numbers(clients),
        "config": measurement.cell.config,
        "sources": dict(facts.sources),
        "records": {
            "rounds": _rounds(facts, metric.column),
            "clients": {
                column: {str(round_): _numbers(values) for round_, values in facts.clients[column].items()}
                for column in (metric.client_column, *FOR_STEPS)
                if column in facts.clients
            },
            "train_sizes": None if facts.train_sizes is None else _numbers(facts.train_sizes),
        },
    }


def text_of(measurement: Measurement) -> str:
    """The JSON file of a cell. The records are one line."""
    content = as_json(measurement)
    records = json.dumps(content.pop("records"), separators=(",", ":"))
    return f'{json.dumps(content, indent=1)[:-2]},\n "records": {records}\n}}\n'


def read_cells(folder: Path) -> dict[str, tuple[Path, RunFacts]]:
    """The published cells in a folder by identity. Raises a `ConfigError`.

    Cells of earlier versions without records are left out.
    """
    if not folder.is_dir():
        raise ConfigError(f"cells: {folder} is not a folder; name one with the JSON files of published cells")
    found: dict[str, tuple[Path, RunFacts]] = {}
    for path in sorted(path for path in folder.glob("*.json") if path.name != TRIALS):
        try:
            content = json.loads(path.read_text())
            if isinstance(content, dict) and "records" not in content:
                continue
            id_, facts = identity(content["config"]), _facts(content)
            changed = content["id"] != id_
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"cells: {path} is not the file of a cell: {type(error).__name__}: {error}") from error
        if changed:
            raise ConfigError(f"cells: {path}: its id is not that of its config; restore or remove the file")
        if id_ in found:  # two rows that report the same run
            if dict(found[id_][1].summary) != dict(facts.summary):
                other = found[id_][0].name
                raise ConfigError(f"cells: {path} and {other} are two runs of the same config; remove one of them")
            facts = _joined(found[id_][1], facts)
        found[id_] = (path, facts)
    return found


def _joined(one: RunFacts, other: RunFacts) -> RunFacts:
    """The records of one run that two rows have kept, each what it reports. Columns have the order of a full row."""
    rows = [{**a, **b} for a, b in zip(one.rounds, other.rounds, strict=True)]
    order = max(map(list, rows), key=len, default=[])
    rounds = [{name: row[name] for name in [*order, *(row.keys() - set(order))] if name in row} for row in rows]
    return replace(other, rounds=rounds, clients={**one.clients, **other.clients})


def _facts(content: Mapping[str, Any]) -> RunFacts:
    records = content["records"]
    rounds = [{name: _value(value) for name, value in row.items()} for row in records["rounds"]]
    clients = {
        column: {int(round_): _array(values) for round_, values in by_round.items()}
        for column, by_round in records["clients"].items()
    }
    sizes = records["train_sizes"]
    train_sizes = None if sizes is None else _array(sizes)
    digests = content["partition_sha256"], content.get("samples")
    return RunFacts(content["run"], rounds, clients, digests[0], train_sizes, digests[1], content["sources"])


def _rounds(facts: RunFacts, reported: str) -> list[dict[str, float | None]]:
    """The rows of metrics.csv. A field that is NaN is None, which differs from a field that is not there."""
    kept = {*IN_EVERY_ROUND, reported}
    return [
        {name: _number(value) for name, value in row.items() if name in kept or _is_evaluation(row)}
        for row in facts.rounds
    ]


def _is_evaluation(row: Mapping[str, float]) -> bool:
    return any(name.startswith("all_") for name in row)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _numbers(values: Values) -> list[float | None]:
    return [_number(float(value)) for value in values]


def _value(number: float | None) -> float:
    return math.nan if number is None else float(number)


def _array(numbers: list[float | None]) -> Values:
    return np.array([_value(number) for number in numbers], dtype=np.float64)
