"""Being asked to stop at any moment: all ranks leave the round together, and it has not happened."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from lightning.fabric import Fabric

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.algorithms import CFL, FedAvg, FedCAC, FedOBP
from pfl_lightning.errors import StopRound
from tests.ranks import run_on_ranks
from tests.toy import fingerprint, toy_loop, toy_summary

SETTINGS: dict[str, Any] = {"rounds": 3, "participation": 0.6, "eval_every": 2}


def disturbed(world: int, algorithm: Algorithm, rank: int, moments: list[int]) -> tuple[dict[str, Any], int]:
    """A run in which one rank is asked to stop at these batches (counted on that rank), and which then goes on."""

    def work(fabric: Fabric) -> tuple[dict[str, Any], int]:
        loop = toy_loop(fabric, algorithm, **SETTINGS)
        batches, stops = 0, 0

        def count() -> None:
            nonlocal batches
            batches += 1
            if fabric.global_rank == rank and batches in moments:
                loop.comm.stop.seen.append(signal.SIGTERM)
            loop.comm.check()

        loop.client.between_batches = count
        while True:
            before = loop.server.round
            try:
                return loop.fit(), stops
            except StopRound:
                stops += 1
                loop.comm.stop.seen.clear()
                assert loop.server.round >= before
                assert not loop.store.pending

    return run_on_ranks(work, world)[0]


@pytest.mark.parametrize("algorithm", [FedAvg(), FedOBP(quantile=0.5), FedCAC(), CFL()], ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_round_that_is_given_up_has_not_happened(algorithm, world):
    """The first batch, in the middle of a client, in an evaluation: rank 1 alone is asked, where there is one."""
    summary, stops = disturbed(world, algorithm, min(1, world - 1), [1, 5, 6, 40, 71, 90])
    assert stops >= 3
    assert fingerprint(summary) == fingerprint(toy_summary(1, algorithm, **SETTINGS))


def test_a_rank_that_waits_learns_of_it_too():
    """The last rank of three is asked while the others are through and wait for it."""
    summary, stops = disturbed(3, FedOBP(quantile=0.5), 2, [3, 4, 20])
    assert stops == 3
    assert fingerprint(summary) == fingerprint(toy_summary(1, FedOBP(quantile=0.5), **SETTINGS))
