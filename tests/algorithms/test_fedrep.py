"""FedRep against numbers worked by hand: head first, then body, with the other one truly frozen."""

from __future__ import annotations

import pytest
import torch
from lightning.fabric import Fabric

from pfl_lightning.algorithms import FedRep
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.product import ProductClients
from tests.helpers.toy import toy_loop
from tests.helpers.visits import open_client

CONTRACT = [FedRep(head_epochs=2)]
LIKE_FEDAVG = [FedRep(head=[], head_epochs=0, body_epochs=2)]


def test_by_hand():
    """h = b = 1, lr 0.1, a = (3, −1). Head: h = 1 + 0.1·(3 − 1) = 1.2, or 0.8.

    Then the body with the new head: b = 1 + 0.1·(3 − 1.2)·1.2 = 1.216, or 1 + 0.1·(−1 − 0.8)·0.8 = 0.856.
    The mean body is 1.036. (Body first would give b = 1.2 and 0.8.)
    """
    run = ProductClients(FedRep(head_epochs=1, body_epochs=1))
    run.loop.round()
    assert run.server == pytest.approx([1.036, 1.0])
    assert run.tested(0) == pytest.approx([1.036, 1.2])
    assert run.tested(1) == pytest.approx([1.036, 0.8])


def test_momentum_and_weight_decay_do_not_move_what_is_frozen():
    """Momentum 0.9, weight decay 0.1, two head steps, one body step, a = 3.

    h: d = −2 + 0.1 = −1.9, h = 1.19; d = 0.9·(−1.9) − (3 − 1.19) + 0.119 = −3.401, h = 1.5301; b is still 1.
    b: d = −(3 − 1.5301)·1.5301 + 0.1 = −2.14909399, b = 1.214909399; h stays.
    """
    run = ProductClients(FedRep(head_epochs=2), targets=[3], optimizer={"momentum": 0.9, "weight_decay": 0.1})
    run.loop.round()
    assert run.tested(0) == pytest.approx([1.214909399, 1.5301])
    assert all(p.requires_grad and p.grad is not None for p in run.loop.engine.client.task.parameters())


def test_the_frozen_body_keeps_its_batchnorm_statistics():
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), FedRep(head_epochs=3, body_epochs=0))
    loop.round()
    initial, layout = loop.server.initial, loop.server.layout
    for client in range(7):
        open_client(loop, client)
        loop.algorithm.download(loop.engine.client, loop.server)
        loop.algorithm.fit(loop.engine.client, loop.server)
        head = loop.algorithm.in_head(loop.engine.client)
        assert torch.equal(loop.engine.client.vector[~head], initial[~head])
        assert not torch.equal(loop.engine.client.vector[head], initial[head])
    assert torch.equal(loop.server.vector, initial)
    assert layout.num_parameters < layout.size


def test_without_a_head_its_epochs_are_skipped():
    """Then the body is the whole model: h = b = 1.2 and 0.8 after one step, 1.0 in the mean."""
    run = ProductClients(FedRep(head=[], head_epochs=2, body_epochs=1))
    run.loop.round()
    assert run.server == pytest.approx([1.0, 1.0])


def test_fine_tuning_is_for_the_head_only():
    run = ProductClients(FedRep(head_epochs=1, body_epochs=1))
    run.loop.round()
    run.tested(0)
    run.loop.algorithm.finetune(run.loop.engine.client, run.loop.server, 1)
    slope = (3 - 1.2 * 1.036) * 1.036
    assert run.loop.engine.client.vector.tolist() == pytest.approx([1.036, 1.2 + 0.1 * slope])


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match=r"head_epochs: -1 is not allowed; use a whole number >= 0"):
        FedRep(head_epochs=-1)
    with pytest.raises(ConfigError, match=r"body_epochs: 1 is not allowed; use 0, as the head is the whole model"):
        ProductClients(FedRep(head=["net"]))


def test_both_numbers_of_epochs_take_the_place_of_local_epochs():
    """Body alone, two epochs, a = 3: b = 1 + 0.1·2 = 1.2, then 1.2 + 0.1·(3 − 1.2) = 1.38."""
    run = ProductClients(FedRep(head_epochs=0, body_epochs=2), targets=[3])
    run.loop.round()
    assert run.tested(0) == pytest.approx([1.38, 1.0])
