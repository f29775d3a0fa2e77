from __future__ import annotations

import numpy as np
import pytest

from pfl_lightning.engine.cohort import assign, cohort_size, draw_cohort
from pfl_lightning.foundation.seeds import derive_seed


def test_a_seed_depends_on_every_part_of_its_path():
    paths = [(0, "a", 1, 2), (1, "a", 1, 2), (0, "b", 1, 2), (0, "a", 2, 2), (0, "a", 1, 3), (0, "a", 12), (0, "a")]
    seeds = [derive_seed(*path) for path in paths]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(0, "a", 1, 2) == seeds[0]


def test_cohort_size_is_the_rounded_share_and_never_zero():
    assert [cohort_size(100, p) for p in (0.1, 0.29, 1.0, 0.001)] == [10, 29, 100, 1]


def test_cohorts_are_sorted_distinct_and_differ_between_rounds():
    cohorts = [draw_cohort(3, round_, 50, 0.2) for round_ in range(1, 9)]
    for cohort in cohorts:
        assert cohort == sorted(set(cohort))
        assert len(cohort) == 10
        assert set(cohort) <= set(range(50))
    assert len({tuple(c) for c in cohorts}) == 8
    assert draw_cohort(3, 1, 50, 0.2) == cohorts[0]
    assert draw_cohort(4, 1, 50, 0.2) != cohorts[0]


def test_everybody_takes_part_in_a_full_cohort():
    assert draw_cohort(0, 1, 7, 1.0) == list(range(7))


def test_every_client_is_drawn_about_equally_often():
    counts = [0] * 20
    for round_ in range(1000):
        for client in draw_cohort(0, round_, 20, 0.25):
            counts[client] += 1
    # 1000 draws with probability 1/4: mean 250, standard deviation 13.7
    assert all(190 < count < 310 for count in counts)


def test_the_longest_client_goes_first_to_the_least_loaded_rank():
    # 9 -> rank 0; 7 -> rank 1; 5 -> rank 1 (7 < 9); 4 -> rank 0 (9 < 12); 1 -> rank 1 (12 < 13)
    assert assign([10, 11, 12, 13, 14], [5, 9, 1, 7, 4], 2, [-1] * 5) == [[11, 14], [13, 10, 12]]


def test_a_client_stays_at_home_when_ranks_are_equally_loaded():
    assert assign([0, 1], [3, 3], 2, [1, 0]) == [[1], [0]]
    assert assign([0, 1], [3, 3], 3, [2, 2]) == [[1], [], [0]]


def test_more_ranks_than_clients_leave_ranks_idle():
    shares = assign([4], [1], 3, [-1])
    assert sorted(map(len, shares)) == [0, 0, 1]


def plain_assign(clients, costs, world, homes):
    """The rule word for word: look at every load for every client."""
    shares, loads = [[] for _ in range(world)], [0.0] * world
    for cost, client, home in sorted(zip(costs, clients, homes, strict=True), key=lambda item: (-item[0], item[1])):
        least = min(loads)
        rank = home if 0 <= home < world and loads[home] == least else loads.index(least)
        loads[rank] += cost
        shares[rank].append(client)
    return shares


@pytest.mark.parametrize("world", [1, 2, 5, 32])
def test_the_assignment_is_the_rule_word_for_word(world):
    """Equal costs and clients without samples make ties, where homes decide."""
    rng = np.random.default_rng(world)
    for costs in (rng.integers(0, 4, 90).tolist(), rng.random(90).round(1).tolist(), [1.0] * 90):
        homes = rng.integers(-1, world + 1, 90).tolist()
        assert assign(range(90), costs, world, homes) == plain_assign(range(90), costs, world, homes)
