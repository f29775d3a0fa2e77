"""The results of a cell as JSON."""

from __future__ import annotations

import math
from typing import Any

from pfl_lightning.compare.measurement import Measurement


def as_json(measurement: Measurement) -> dict[str, Any]:
    """Everything about a cell that is worth keeping without its run directory."""
    summary, metric = measurement.facts.summary, measurement.metric
    kept = ("algorithm", "data", "num_clients", "num_parameters", "model_sha256", "clients_sha256", "world_size",
            "seconds", "up_bytes", "down_bytes", "version", "git_commit", "command")  # fmt: skip
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
        **{key: None if math.isnan(number) else number for key, number in numbers.items()},
        "partition_sha256": measurement.facts.partition_sha256,
        "run": {key: summary[key] for key in kept if key in summary},
        "clients": None if clients is None else [None if math.isnan(v) else float(v) for v in clients],
        "config": measurement.cell.config,
    }
