"""Numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pfl_lightning.compare.statistics import (
    first_reached,
    holm,
    mean_deviation,
    paired,
    spread,
    worse_share,
    worst_tenth,
)

NAN = math.nan


def test_mean_and_deviation():
    assert mean_deviation([2.0, 4.0, 6.0]) == (4.0, 2.0)
    assert mean_deviation([3.0]) == (3.0, None)


def test_the_worst_tenth_is_rounded_up_and_knows_the_direction():
    values = np.array([0.5, NAN, *np.arange(1, 11) / 10])  # eleven clients with a value: two of them
    assert worst_tenth(values, higher=True) == pytest.approx(0.15)
    assert worst_tenth(values, higher=False) == pytest.approx(0.95)
    assert math.isnan(worst_tenth(np.array([NAN]), True))


def test_spread_leaves_out_clients_without_a_value():
    assert spread(np.array([1.0, NAN, 3.0])) == 1.0


def test_negative_transfer_counts_strictly_worse_clients_of_all_seeds():
    method = [np.array([0.5, 0.6, NAN]), np.array([0.7, 0.2, 0.4])]
    local = [np.array([0.6, 0.6, 0.9]), np.array([0.6, 0.3, 0.4])]
    assert worse_share(method, local, higher=True) == 2 / 5
    assert worse_share(method, local, higher=False) == 1 / 5


def test_the_first_round_that_reaches_a_value():
    series = [(2, 0.3), (4, 0.6), (6, 0.5)]
    assert first_reached(series, 0.5, higher=True) == 4
    assert first_reached(series, 0.7, higher=True) is None
    assert first_reached(series, 0.4, higher=False) == 2


def test_paired_differences():
    values, reference = [np.array([3.0, 5.0, 7.0])], [np.array([1.0, 1.0, 1.0])]
    result = paired(values, reference, same_clients=True)
    assert result is not None
    half = 4.302652729911275 * 2 / math.sqrt(3)  # t quantile with 2 degrees of freedom
    assert (result.difference, result.pairs) == (4.0, 3)
    assert (result.low, result.high) == (pytest.approx(4 - half), pytest.approx(4 + half))
    assert result.p == 0.25  # 2 of the 2³ sign patterns are as extreme


def test_seeds_of_the_same_client_are_not_independent():
    rng = np.random.default_rng(0)
    client = rng.normal(0.1, 1, 20)  # every seed shows the same differences
    seeds = [client] * 5
    zero = [np.zeros(20)] * 5
    together, apart = paired(seeds, zero, True), paired(seeds, zero, False)
    assert together is not None
    assert apart is not None
    assert (together.pairs, apart.pairs) == (20, 100)
    assert together.p == paired(seeds[:1], zero[:1], True).p  # type: ignore[union-attr]
    assert apart.p < together.p


def test_a_client_counts_with_the_seeds_in_which_it_has_a_value():
    """Clients that were never drawn have no value after training. More seeds must not leave fewer clients."""
    values = [np.array([1.0, 2.0, NAN, NAN]), np.array([NAN, 4.0, 5.0, NAN])]
    result = paired(values, [np.zeros(4)] * 2, True)
    assert result is not None
    assert (result.pairs, result.difference) == (3, (1 + 3 + 5) / 3)
    assert paired([np.array([1.0, NAN])], [np.zeros(2)], True) is None


def test_ties_are_ranked_by_their_mean():
    """Ranks of |d| are 1.5, 1.5, 3.5, 3.5, 1.5 for the negative one, where 5 is expected. Variance Σ r²/4."""
    differences = np.array([0.1, 0.3 - 0.2 - 0.2, 0.2, 0.3 - 0.1])
    result = paired([differences], [np.zeros(4)], True)
    assert result is not None
    deviation = math.sqrt((1.5**2 + 1.5**2 + 3.5**2 + 3.5**2) / 4)
    assert result.p == pytest.approx(math.erfc((5 - 1.5) / deviation / math.sqrt(2)))


def test_no_difference_at_all():
    result = paired([np.ones(5)], [np.ones(5)], True)
    assert result is not None
    assert (result.difference, result.p) == (0.0, 1.0)


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
