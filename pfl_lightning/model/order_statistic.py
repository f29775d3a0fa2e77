"""The k-th largest of many values."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

SAMPLE = 1 << 12
"""Scores that are sorted to see between which values the wanted one lies."""


def largest_value(scores: Tensor, k: int) -> Tensor:
    """The k-th largest value, in linear time. On CPUs torch's own selection moves pairs of values and indices around.
    Numpy's uses vector instructions, but is slow where most scores are equal, as those of parameters that never moved.
    So a sorted sample tells first which values it must lie between: seldom anything but a few is left to select from.
    """
    if scores.is_cuda:
        return torch.kthvalue(scores, len(scores) - k + 1).values
    values = scores.numpy()
    high, low = _bounds(values, k)
    from_high = np.zeros_like(values, dtype=bool) if high is None else values >= high
    above_low = np.ones_like(from_high) if low is None else values > low
    count, most = np.count_nonzero(from_high), np.count_nonzero(above_low)
    if count < k <= most:
        return scores.new_tensor(np.partition(values[np.flatnonzero(above_low ^ from_high)], most - k)[most - k])
    if high is not None and np.count_nonzero(values > high) < k <= count:
        return scores.new_tensor(high)
    if low is not None and most < k <= np.count_nonzero(values >= low):
        return scores.new_tensor(low)
    return scores.new_tensor(np.partition(values, len(values) - k)[len(values) - k])  # the sample was not like the rest


def top_candidates(scores: Tensor, k: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The places and values of a few scores on a CPU, the k largest and all NaN among them. One pass over the scores.

    None if the sample shows no bound that leaves few.
    """
    values = scores.numpy()
    _, low = _bounds(values, k)
    if low is None:
        return None
    at = np.flatnonzero(~(values <= low))  # NaN is not "at most" anything
    return (at, values[at]) if len(at) >= k else None


def _bounds(values: np.ndarray, k: int) -> tuple[np.floating | None, np.floating | None]:
    """Values between which the k-th largest lies, most probably, as a sorted sample shows. None: no bound is known."""
    ordered = np.sort(values[:: max(1, len(values) // SAMPLE)])[::-1]
    place = k * len(ordered) / len(values)
    margin = 4 * math.sqrt(place) + 8
    ends = math.floor(place - margin), math.ceil(place + margin)  # beyond the sample's own ends
    high, low = (ordered[end] if 0 <= end < len(ordered) else None for end in ends)
    return high, low
