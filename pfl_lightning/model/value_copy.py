"""Copies of values that users keep in their modules, so that one client cannot change them for the next."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

KEPT = (nn.Parameter, Dataset, DataLoader)
"""Values of these kinds are not copied. Nor are objects of this package."""


def copied(value: Any, memo: dict[int, Any]) -> Any:
    """A copy of a value. A value that cannot be copied is returned as it is.

    Args:
        value: any object.
        memo: the id of each object not copied, to the object that takes its place. Copies are added to it, so
            that two references to one object become two references to one copy.
    """
    if isinstance(value, KEPT) or type(value).__module__.partition(".")[0] == __package__.partition(".")[0]:
        return value
    if id(value) in memo:
        return memo[id(value)]
    made = _copy(value, memo)
    memo[id(value)] = made
    return made


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, torch.Generator):
        return torch.Generator(value.device).set_state(value.get_state())
    if isinstance(value, Mapping) and hasattr(value, "update"):
        mapping: Any = copy.copy(value)
        mapping.update({name: copied(inner, memo) for name, inner in value.items()})
        return mapping
    if isinstance(value, deque):
        return deque((copied(inner, memo) for inner in value), value.maxlen)
    if type(value) in (list, tuple, set):
        return type(value)(copied(inner, memo) for inner in value)
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # an open file, for example
        return value


def equal(one: Any, other: Any) -> bool:
    """Whether two values are equal, as far as one can tell: objects of other kinds than the usual ones are."""
    if one is other or type(one) is not type(other):
        return one is other
    if isinstance(one, Tensor):
        return one.shape == other.shape and bool((one == other).all())
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(equal(value, other[name]) for name, value in one.items())
    return not isinstance(one, int | float | str | set) or one == other
