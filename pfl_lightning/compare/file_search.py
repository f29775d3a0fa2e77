"""The `search` of an experiment file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pfl_lightning.compare.experiment import ENGINES, EVERY, Search
from pfl_lightning.compare.file_checks import as_mapping, as_number, check_key, is_whole, only_known
from pfl_lightning.foundation.errors import ConfigError, require

SEARCH = ("space", "engine", "budget", "seed")
RANGE = ("low", "high", "log", "steps")


def search_from(content: object, labels: Sequence[str]) -> Search:
    """The values to try, how many, and in which way."""
    content = as_mapping(content, "search")
    only_known(content, SEARCH, "search.")
    space = as_mapping(content.get("space") or {}, "search.space")
    require(bool(space), "search.space", None, "a method or * with its keys")
    checked: dict[str, dict[str, Any]] = {}
    for label, keys in space.items():
        require(label == EVERY or label in labels, "search.space", label, " | ".join([EVERY, *labels]))
        where = f"search.space.{label}"
        checked[label] = {key: _values(key, values, where) for key, values in as_mapping(keys, where).items()}
    engine, budget, seed = content.get("engine", "random"), content.get("budget", 10), content.get("seed", 0)
    require(engine in ENGINES, "search.engine", engine, " | ".join(ENGINES))
    require(is_whole(budget, 1), "search.budget", budget, "a whole number >= 1")
    require(is_whole(seed), "search.seed", seed, "a whole number >= 0")
    return Search(checked, engine, budget, seed)


def _values(key: str, values: object, where: str) -> Any:
    """A list of values, or a range with numbers for its ends."""
    check_key(key, where)
    where = f"{where}.{key}"
    if isinstance(values, list) and values:
        return values
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: {values!r} is not allowed; use a list of values or {{low: …, high: …}}")
    only_known(values, RANGE, f"{where}.")
    low, high = as_number(values.get("low"), f"{where}.low"), as_number(values.get("high"), f"{where}.high")
    steps = values.get("steps")
    require(low < high, where, dict(values), "a low below high")
    require(low > 0 or not values.get("log"), where, dict(values), "a low above 0 with log")
    require(steps is None or is_whole(steps, 2), f"{where}.steps", steps, "a whole number >= 2")
    return {"low": low, "high": high, "log": bool(values.get("log")), "steps": steps}
