"""Statistics of a comparison: pure functions of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Values = NDArray[np.float64]
CONFIDENCE = 0.95
EXACT_PAIRS = 50


def mean_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation (n − 1). One value has no deviation."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def worst_tenth(values: Values, higher: bool) -> float:
    """Mean over the worst tenth of the clients, their number rounded up."""
    known = np.sort(values[~np.isnan(values)])
    ordered = known if higher else known[::-1]
    return float(ordered[: math.ceil(len(ordered) / 10)].mean()) if len(known) else math.nan


def spread(values: Values) -> float:
    """Standard deviation over the clients."""
    known = values[~np.isnan(values)]
    return float(known.std()) if len(known) else math.nan


def worse_share(values: Sequence[Values], reference: Sequence[Values], higher: bool) -> float:
    """Share of the clients, over all seeds, with strictly worse values than in the reference. Ties are not worse.

    Args:
        values: per seed, one value per client.
        reference: the same clients and seeds.
        higher: whether higher is better.
    """
    differences = np.concatenate([a - b for a, b in zip(values, reference, strict=True)])
    known = differences[~np.isnan(differences)]
    worse = known < 0 if higher else known > 0
    return float(worse.mean()) if len(known) else math.nan


def first_reached(series: Sequence[tuple[int, float]], target: float, higher: bool) -> int | None:
    """The first round whose value is at least as good as the target."""
    return next((round_ for round_, value in series if (value >= target if higher else value <= target)), None)


@dataclass(frozen=True)
class Paired:
    """A paired comparison over clients."""

    difference: float
    """Mean of the differences, first minus second."""
    low: float
    high: float
    """Ends of the 95 % interval of the mean."""
    p: float
    """Two-sided Wilcoxon signed-rank test."""
    pairs: int


def paired(values: Sequence[Values], reference: Sequence[Values], same_clients: bool) -> Paired | None:
    """Compare two methods on the same clients. None with fewer than two pairs.

    Args:
        values: per seed, one value per client.
        reference: the same for the other method.
        same_clients: whether all seeds have the same partition. A client's differences are then averaged over the
            seeds first, those that have one: they are not independent, and to count each of them would overstate the
            evidence. To ask for all seeds would leave fewer clients with every seed.
    """
    rows = [a - b for a, b in zip(values, reference, strict=True)]
    if same_clients:
        known = [row[~np.isnan(row)] for row in np.array(rows).T]
        differences = np.array([row.mean() for row in known if len(row)])
    else:
        joined = np.concatenate(rows)
        differences = joined[~np.isnan(joined)]
    if len(differences) < 2:
        return None
    mean, error = float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(len(differences))
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(differences) - 1)) * error
    return Paired(mean, mean - half, mean + half, _signed_rank(differences), len(differences))


def _signed_rank(differences: Values) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test: exact for few pairs without ties, else by the normal law."""
    rounded = np.round(differences, 12)  # ties that differ by rounding errors only
    if not rounded.any():
        return 1.0
    plain = len(np.unique(np.abs(rounded))) == len(rounded) and rounded.all()
    method = "exact" if plain and len(rounded) <= EXACT_PAIRS else "approx"
    return float(stats.wilcoxon(rounded, method=method).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction for several tests: adjusted p-values in the given order."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted
