"""Being asked to stop at any moment: all ranks leave the round together, and it has not happened.

That every algorithm keeps to it is part of the contract; here are the moments and the numbers of ranks.
"""

from __future__ import annotations

from typing import Any

import pytest

from pfl_lightning.algorithms import FedCAC, FedOBP
from tests.helpers.toy import disturbed_summary, fingerprint, toy_summary

SETTINGS: dict[str, Any] = {"rounds": 3, "participation": 0.6, "eval_every": 2}


@pytest.mark.parametrize("algorithm", [FedOBP(quantile=0.5), FedCAC()], ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_round_that_is_given_up_has_not_happened(algorithm, world):
    """The first batch, in the middle of a client, in an evaluation: rank 1 alone is asked, where there is one."""
    summary, stops = disturbed_summary(world, algorithm, min(1, world - 1), [1, 5, 6, 40, 71, 90], **SETTINGS)
    assert stops >= 3
    assert fingerprint(summary) == fingerprint(toy_summary(1, algorithm, **SETTINGS))


def test_a_rank_that_waits_learns_of_it_too():
    """The last rank of three is asked while the others are through and wait for it."""
    summary, stops = disturbed_summary(3, FedOBP(quantile=0.5), 2, [3, 4, 20], **SETTINGS)
    assert stops == 3
    assert fingerprint(summary) == fingerprint(toy_summary(1, FedOBP(quantile=0.5), **SETTINGS))
