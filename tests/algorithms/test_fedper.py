"""FedPer against numbers worked by hand."""

from __future__ import annotations

import pytest

from pfl_lightning.algorithms import FedPer
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.product import ProductClients
from tests.helpers.scalar import ScalarClients
from tests.helpers.toy import toy_summary

CONTRACT = [FedPer(head=["net.body.0", "net.head"], bn_buffers="local")]
LIKE_FEDAVG = [FedPer(head=[])]
LIKE_LOCAL = [FedPer(head=["net"])]


def test_by_hand():
    """h = b = 1, lr 0.1, a = (3, −1): the joint step adds 0.1 · (a − 1) to both, so (h, b) = (1.2, 1.2), (0.8, 0.8).

    The body's mean is 1.0, the heads stay. Each is tested with the mean body and its own head.
    """
    run = ProductClients(FedPer())
    run.loop.round()
    assert run.server == pytest.approx([1.0, 1.0])
    assert run.tested(0) == pytest.approx([1.0, 1.2])
    assert run.tested(1) == pytest.approx([1.0, 0.8])


def test_a_client_never_drawn_has_the_initial_head_and_the_newest_body():
    run = ProductClients(FedPer(), participation=0.5)
    run.loop.round()
    (drawn,) = run.loop.store.states
    body = [1.2, 0.8][drawn]
    assert run.tested(1 - drawn) == pytest.approx([body, 1.0])
    assert run.tested(drawn) == pytest.approx([body, body])


def test_heads_do_not_travel():
    """The body of the toy: 6·8 + 8 + 2·8 parameters and 2·8 statistics are 88 of 115 entries; seven clients."""
    summary = toy_summary(1, FedPer(), rounds=1)
    assert summary["up_bytes"] == summary["down_bytes"] == 7 * 4 * 88


def test_a_head_that_is_not_there_is_refused():
    with pytest.raises(
        ConfigError, match=r"algorithm.head: 'net.tail' is not allowed; use net \| net.body \| net.head"
    ):
        ProductClients(FedPer(head=["net.tail"]))


def test_a_task_without_a_head_is_refused():
    with pytest.raises(ConfigError, match=r"task.head: there is no layer named head, classifier or fc"):
        ScalarClients(FedPer(), targets=[1], sizes=[1], steps=1)
