"""Labels of a user's files to class numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pfl_lightning.data.own.source import natural_order
from pfl_lightning.data.partitions.partition import Ints
from pfl_lightning.foundation.errors import ConfigError


class Targets(NamedTuple):
    """Targets as a net needs them."""

    y: NDArray[Any]
    """Class numbers (int64 [N]) or numbers to predict (float32 [N, K])."""
    outputs: int
    """Number of classes, or of numbers to predict."""
    class_names: tuple[str, ...]
    """Name of each class. Empty for class numbers without names and for numbers to predict."""


def make_targets(
    parts: Sequence[NDArray[Any]],
    names: Sequence[str] | None,
    num_classes: int | None,
    place: Callable[[int], str],
) -> Targets:
    """Join the targets of all blocks.

    Whole numbers are class numbers and stay as they are. Names are numbered in alphabetical order.

    Args:
        parts: targets of each block.
        names: names of the classes that class numbers refer to, if they are known.
        num_classes: number of classes that the user asks for.
        place: where a sample comes from, for messages.
    """
    parts = [part.astype(np.int64) if part.dtype.kind in "iub" else part for part in parts]
    kinds = {part.dtype.kind for part in parts}
    if len(kinds) > 1:
        odd = next(at for at, part in enumerate(parts) if part.dtype.kind != parts[0].dtype.kind)
        row = sum(len(part) for part in parts[:odd])
        raise ConfigError(f"data: {place(row)}: this label is of another type than the labels before it")
    y = np.concatenate(parts)
    if kinds == {"f"}:
        return _numbers(y, num_classes, place)
    if kinds == {"U"}:
        names, y = _number_names(y)
    elif kinds != {"i"}:
        raise ConfigError(f"data: {place(0)}: labels are {y.dtype}; use whole numbers, names or float numbers")
    if y.ndim != 1:
        raise ConfigError(f"data: {place(0)}: a label has the shape {y.shape[1:]}; use one class for each sample")
    count = _count_classes(y, names, num_classes, place)
    return Targets(y, count, tuple(names or ()))


def _numbers(y: NDArray[Any], num_classes: int | None, place: Callable[[int], str]) -> Targets:
    if num_classes is not None:
        raise ConfigError(f"num_classes: {num_classes} is given, but the labels are numbers to predict ({place(0)})")
    y = y.astype(np.float32).reshape(len(y), -1)
    bad = np.flatnonzero(~np.isfinite(y).all(axis=1))
    if len(bad):
        raise ConfigError(f"data: {place(int(bad[0]))}: the target is NaN or infinite")
    return Targets(y, y.shape[1], ())


def _number_names(y: NDArray[Any]) -> tuple[list[str], Ints]:
    found, inverse = np.unique(y, return_inverse=True)
    names = natural_order(found.tolist())
    numbers = {name: number for number, name in enumerate(names)}
    return names, np.array([numbers[name] for name in found.tolist()], dtype=np.int64)[inverse]


def _count_classes(
    y: NDArray[Any], names: Sequence[str] | None, num_classes: int | None, place: Callable[[int], str]
) -> int:
    """The number of classes. Raises a `ConfigError` for a label that cannot be a class number."""
    if names is not None:
        if num_classes not in (None, len(names)):
            raise ConfigError(f"num_classes: {num_classes} is given, the data has {len(names)} classes; leave it out")
        count = len(names)
    else:
        # a larger number is a mistake far more often than a class that nobody has
        count = num_classes or min(int(y.max()) + 1, max(2, len(y)))
    bad = np.flatnonzero((y < 0) | (y >= count))
    if len(bad):
        row = int(bad[0])
        until = f"to {count - 1}" if count > 0 else "on"  # negative: all labels are
        raise ConfigError(
            f"data: {place(row)}: label {y[row]} is not a class; use whole numbers from 0 {until}, or names"
        )
    return count
