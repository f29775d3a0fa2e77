"""Search: try values of some keys and let validation data choose.

Proposals are a pure function of the trials so far, so an interrupted search goes on as if nothing had happened.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pfl_lightning.compare.experiment import Keys, Search
from pfl_lightning.compare.metric import Metric
from pfl_lightning.foundation.errors import ConfigError

Trial = tuple[Keys, float | None]
"""Values that were tried, and their result on validation data. None: the run failed, or its value is not a number."""


def propose(search: Search, method: str, column: str, higher: bool, trials: Sequence[Trial]) -> list[Keys]:
    """The values to try next. They may all run at the same time. Empty: the budget is spent.

    Args:
        search: space, engine and budget.
        method: label of the method.
        column: label of the column.
        higher: whether a higher value is better.
        trials: the finished ones, in the order of their proposal.
    """
    space = search.space_of(method)
    if search.engine == "optuna":
        from pfl_lightning.compare.search_optuna import propose_next

        if len(trials) >= search.budget:
            return []
        return [propose_next(space, _seed(search.seed, method, column), higher, trials)]
    every = _grid(space, search.budget, method) if search.engine == "grid" else _random(space, search, method, column)
    return every[len(trials) :]


def choose(metric: Metric, trials: Sequence[Trial]) -> Keys | None:
    """The values with the best result on validation data, the first of equals. None if every trial failed."""
    values = [math.nan if value is None else value for _, value in trials]
    if all(math.isnan(value) for value in values):
        return None
    return trials[metric.best(values)][0]


def check_validation(config: Mapping[str, Any], where: str) -> None:
    """Refuse a search without validation data: test data may not choose."""
    share = config.get("data", {}).get("init_args", {}).get("validation_share")
    if not share:
        raise ConfigError(
            f"search: {where} has no validation data; set data.validation_share above 0, for test data may not choose"
        )


def _grid(space: Mapping[str, Any], budget: int, method: str) -> list[Keys]:
    axes = [_points(key, values) for key, values in space.items()]
    points = [dict(zip(space, values, strict=True)) for values in itertools.product(*axes)]
    if len(points) > budget:
        raise ConfigError(
            f"search.budget: {budget} is not enough for the {len(points)} points of {method}'s grid; "
            f"use {len(points)}, or engine: random"
        )
    return list(points)


def _points(key: str, values: Any) -> list[Any]:
    if isinstance(values, list):
        return values
    if values["steps"] is None:
        raise ConfigError(f"search.space: {key} has no steps, which engine: grid needs; add steps or use a list")
    space = np.geomspace if values["log"] else np.linspace
    return [float(point) for point in space(values["low"], values["high"], values["steps"])]


def _random(space: Mapping[str, Any], search: Search, method: str, column: str) -> list[Keys]:
    """Different random points, as many as the budget allows. A small space of lists may have fewer."""
    rng = np.random.default_rng(_seed(search.seed, method, column))
    sizes = [len(set(map(repr, values))) if isinstance(values, list) else search.budget for values in space.values()]
    wanted = min(search.budget, math.prod(sizes))
    points: dict[str, Keys] = {}
    while len(points) < wanted:
        point = {key: _draw(values, rng) for key, values in space.items()}
        points.setdefault(repr(point), point)
    return list(points.values())


def _draw(values: Any, rng: np.random.Generator) -> Any:
    if isinstance(values, list):
        return values[int(rng.integers(len(values)))]
    low, high = values["low"], values["high"]
    if values["log"]:
        return float(math.exp(rng.uniform(math.log(low), math.log(high))))
    return float(rng.uniform(low, high))


def _seed(seed: int, method: str, column: str) -> int:
    """A seed of its own for every method and column."""
    return int.from_bytes(hashlib.sha256(f"{seed}\n{method}\n{column}".encode()).digest()[:4], "big")
