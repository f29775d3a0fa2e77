"""What is learned of how long clients take, by hand, and that it balances ranks without changing a result."""

from __future__ import annotations

import pytest
from lightning.fabric import Fabric

from pfl_lightning.algorithms import FedOBP
from pfl_lightning.engine.cohort import assign
from pfl_lightning.engine.durations import DurationModel
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.loop_config import LoopConfig
from tests.helpers.ranks import run_on_ranks
from tests.helpers.toy import TRAIN_SIZES, fingerprint, toy_loop, toy_summary


def test_without_a_visit_the_samples_are_all_that_is_known():
    assert DurationModel().estimate([4, 2], [30, 7]) == [30.0, 7.0]


def test_a_visit_costs_something_and_each_sample_too():
    """Visits of 10 and 30 samples took 3 and 7 seconds: 1 s and 0.2 s a sample, so 50 samples take 11 s."""
    durations = DurationModel()
    durations.enter([0, 1], [10, 30], [3.0, 7.0])
    assert durations.estimate([0, 1, 2], [10, 30, 50]) == pytest.approx([3.0, 7.0, 11.0])


def test_a_client_that_takes_longer_than_others_is_expected_to_do_so_again():
    """Three clients of 10 samples took 1, 1 and 4 s: usual are 2 s, they took half of it or twice that."""
    durations = DurationModel()
    durations.enter([0, 1, 2], [10, 10, 10], [1.0, 1.0, 4.0])
    assert durations.estimate([2, 0, 3], [10, 10, 10]) == pytest.approx([4.0, 1.0, 2.0])
    # the machine has become slower: client 3 takes 4 s. (0.9 · 3 · 2 s + 4 s) / (0.9 · 3 + 1) = 2.541 s a visit
    durations.enter([3], [10], [4.0])
    usual = (0.9 * 6 + 4) / (0.9 * 3 + 1)
    assert durations.estimate([2, 4], [10, 10]) == pytest.approx([2 * usual, usual])


def test_a_line_that_makes_no_sense_is_drawn_through_zero():
    """The larger client was faster by chance: 40 samples in 4 s are 0.1 s a sample."""
    durations = DurationModel()
    durations.enter([0, 1], [10, 30], [3.0, 1.0])
    assert durations.estimate([2], [20]) == pytest.approx([2.0])
    # no samples at all, and still they take their time
    durations = DurationModel()
    durations.enter([0, 1], [0, 0], [1.0, 3.0])
    assert durations.estimate([5], [0]) == pytest.approx([2.0])


def test_ranks_share_out_the_seconds():
    """By samples, 9 and 1 + 8 would be equal; but client 2 is slow."""
    durations = DurationModel()
    durations.enter([0, 1, 2], [9, 1, 8], [9.0, 1.0, 20.0])
    shares = assign([0, 1, 2], durations.estimate([0, 1, 2], [9, 1, 8]), 2, [-1] * 3)
    assert sorted(map(sorted, shares)) == [[0, 1], [2]]


@pytest.mark.parametrize("balance_by", ["seconds", "samples"])
def test_no_result_depends_on_it(balance_by):
    settings = {"rounds": 4, "participation": 0.6, "balance_by": balance_by}
    expected = toy_summary(1, FedOBP(quantile=0.5), rounds=4, participation=0.6)
    assert fingerprint(toy_summary(2, FedOBP(quantile=0.5), **settings)) == fingerprint(expected)


def test_every_rank_learns_the_same():
    def work(fabric: Fabric) -> list[float]:
        loop = toy_loop(fabric, FedOBP(quantile=0.5), rounds=2)
        loop.fit()
        return loop.durations.estimate(range(7), TRAIN_SIZES)

    first, second = run_on_ranks(work, 2)
    assert first == second
    assert all(seconds > 0 for seconds in first)
    assert first != TRAIN_SIZES, "seconds, not samples"


@pytest.mark.parametrize(("balance_by", "alone"), [("seconds", True), ("auto", True), ("samples", False)])
def test_the_loop_gives_a_slow_client_a_rank_of_its_own(balance_by, alone):
    """Client 2 has the fewest samples; it took as long as all others together when it was visited before."""

    def work(fabric: Fabric) -> list[int]:
        loop = toy_loop(fabric, FedOBP(quantile=0.5), balance_by=balance_by)
        if loop.durations:
            loop.durations.enter(range(7), TRAIN_SIZES, [1.0, 1.0, 6.0, 1.0, 1.0, 1.0, 1.0])
        loop.round()
        return [client for client, rank in enumerate(loop.store.home) if rank == loop.store.home[2]]

    for beside in run_on_ranks(work, 2):
        assert (beside == [2]) == alone


def test_clients_that_are_trained_together_are_always_the_same_ones():
    with pytest.raises(ConfigError, match="balance_by: 'seconds' is not allowed; use auto or samples with"):
        LoopConfig(clients_per_step=2, balance_by="seconds")
    assert LoopConfig().by_seconds
    assert not LoopConfig(clients_per_step=2).by_seconds
    assert not LoopConfig(balance_by="samples").by_seconds
