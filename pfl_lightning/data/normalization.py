"""The option `normalize`: how raw values become the inputs of a net."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

from pfl_lightning.foundation.errors import ConfigError, require

Normalization: TypeAlias = Literal["standard", "unit"] | dict[str, float | list[float]]


def check_normalization(value: Normalization) -> None:
    """Refuse anything but a known word or a mean and a deviation."""
    fine = value in ("standard", "unit") if isinstance(value, str) else set(value) == {"mean", "std"}
    require(fine, "normalize", value, "standard, unit or {mean: …, std: …} with numbers or lists of numbers")
    if isinstance(value, dict):
        mean, std = _numbers(value["mean"]), _numbers(value["std"])
        require(all(map(math.isfinite, mean)), "normalize.mean", value["mean"], "finite numbers")
        require(all(0 < s < math.inf for s in std), "normalize.std", value["std"], "numbers above 0")


def mean_and_std(
    value: Normalization, measured: tuple[Sequence[float], Sequence[float]]
) -> tuple[list[float], list[float]]:
    """The mean to subtract and the deviation to divide by, one number for each channel or column.

    Args:
        value: the option.
        measured: mean and deviation of the data set itself, used for `standard`.
    """
    count = len(measured[0])
    if value == "unit":
        return [0.0] * count, [1.0] * count
    if isinstance(value, str):
        return list(measured[0]), list(measured[1])
    return _spread("mean", _numbers(value["mean"]), count), _spread("std", _numbers(value["std"]), count)


def _numbers(value: float | list[float]) -> list[float]:
    return [float(v) for v in value] if isinstance(value, Sequence) else [float(value)]


def _spread(key: str, values: list[float], count: int) -> list[float]:
    """One number for every channel. A single one serves all."""
    if len(values) not in (1, count):
        raise ConfigError(f"normalize.{key}: {len(values)} numbers are given; use one number, or {count} in a list")
    return values * count if len(values) == 1 else values
