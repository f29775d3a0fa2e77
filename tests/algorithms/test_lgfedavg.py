"""LG-FedAvg against numbers worked by hand: the top is shared, not the bottom."""

from __future__ import annotations

import pytest

from pfl_lightning.algorithms import LGFedAvg
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.product import ProductClients
from tests.helpers.toy import toy_summary

CONTRACT = [LGFedAvg(warmup_rounds=2)]
LIKE_FEDAVG = [LGFedAvg(head=["net"]), LGFedAvg(warmup_rounds=6)]
LIKE_LOCAL = [LGFedAvg(head=[])]


def test_by_hand():
    """h = b = 1, lr 0.1, a = (3, −1): (h, b) = (1.2, 1.2) and (0.8, 0.8); the heads' mean is 1.0, the bodies stay."""
    run = ProductClients(LGFedAvg())
    run.loop.round()
    assert run.server == pytest.approx([1.0, 1.0])
    assert run.tested(0) == pytest.approx([1.2, 1.0])
    assert run.tested(1) == pytest.approx([0.8, 1.0])


def test_warm_up_by_hand():
    """a = 3 and 2, one round of FedAvg: b = h = (1.2 + 1.1)/2 = 1.15. In the second round, f = 1.3225:

    both entries move by 0.1·1.15·(a − f), to 1.3429125 and 1.2279125; the head's mean is 1.2854125.
    """
    run = ProductClients(LGFedAvg(warmup_rounds=1), targets=[3, 2])
    run.loop.round()
    assert run.tested(0) == run.tested(1) == pytest.approx([1.15, 1.15])
    run.loop.round()
    assert run.tested(0) == pytest.approx([1.3429125, 1.2854125])
    assert run.tested(1) == pytest.approx([1.2279125, 1.2854125])
    assert run.server == pytest.approx([1.15, 1.2854125])


def test_only_the_head_travels():
    """The toy's head: 8·3 + 3 = 27 entries; seven clients. In a warm-up round all 115 entries do."""
    summary = toy_summary(1, LGFedAvg(), rounds=1)
    assert summary["up_bytes"] == summary["down_bytes"] == 7 * 4 * 27
    summary = toy_summary(1, LGFedAvg(warmup_rounds=1), rounds=1)
    assert summary["up_bytes"] == 7 * 4 * 115


def test_a_client_never_drawn_has_the_initial_body_and_the_newest_head():
    run = ProductClients(LGFedAvg(), participation=0.5)
    run.loop.round()
    (drawn,) = run.loop.store.states
    assert run.tested(1 - drawn) == pytest.approx([1.0, [1.2, 0.8][drawn]])


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match=r"warmup_rounds: -1 is not allowed; use a whole number >= 0"):
        LGFedAvg(warmup_rounds=-1)
