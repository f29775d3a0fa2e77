"""FedBABU against numbers worked by hand: the head never moves during the federation."""

from __future__ import annotations

import pytest
import torch
from lightning.fabric import Fabric

from pfl_lightning.algorithms import FedBABU
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.product import ProductClients
from tests.helpers.toy import toy_loop

CONTRACT = [FedBABU()]
LIKE_FEDAVG = [FedBABU(head=[])]


def test_by_hand():
    """h = b = 1, lr 0.1, a = (3, −1): b = 1.2 and 0.8, mean 1.0; h = 1. Nobody keeps anything.

    Two steps with a = 3 and h = 1 all the time: b = 1.2 + 0.1·(3 − 1.2) = 1.38, where a moving head would give more.
    """
    run = ProductClients(FedBABU())
    run.loop.round()
    assert run.server == pytest.approx([1.0, 1.0])
    assert run.tested(0) == run.tested(1) == pytest.approx([1.0, 1.0])
    run = ProductClients(FedBABU(), targets=[3], local_epochs=2)
    run.loop.round()
    assert run.server == pytest.approx([1.38, 1.0])


def test_momentum_and_weight_decay_do_not_move_the_head():
    run = ProductClients(FedBABU(), optimizer={"momentum": 0.9, "weight_decay": 0.1}, local_epochs=3)
    for _ in range(3):
        run.loop.round()
        assert run.server[1] == 1.0
    assert run.server[0] != 1.0


def test_the_head_of_a_net_stays_as_it_was_made():
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), FedBABU(), rounds=3, finetune_epochs=2, eval_every=1)
    loop.fit()
    head = loop.algorithm.in_head(loop.engine.client)
    assert torch.equal(loop.server.vector[head], loop.server.initial[head])
    assert not torch.equal(loop.server.vector[~head], loop.server.initial[~head])


@pytest.mark.parametrize(("part", "expected"), [("all", [1.2, 1.2]), ("head", [1.0, 1.2]), ("body", [1.2, 1.0])])
def test_what_fine_tuning_changes(part, expected):
    """From b = h = 1 one step of 0.1·(3 − 1); the server does not notice."""
    run = ProductClients(FedBABU(finetuned=part, finetune_factor=1.0))
    run.loop.round()
    run.tested(0)
    run.loop.algorithm.finetune(run.loop.engine.client, run.loop.server, 1)
    assert run.loop.engine.client.vector.tolist() == pytest.approx(expected)
    assert run.server == pytest.approx([1.0, 1.0])


def test_fine_tuning_has_a_hundredth_of_the_training_rate():
    """From b = h = 1 one step of 0.001·(3 − 1)."""
    run = ProductClients(FedBABU())
    run.tested(0)
    run.loop.algorithm.finetune(run.loop.engine.client, run.loop.server, 1)
    assert run.loop.engine.client.vector.tolist() == pytest.approx([1.002, 1.002], abs=1e-6)


def test_fine_tuning_has_its_own_number_of_epochs():
    """b = h = 1.2 after one step of 0.1·(3 − 1), then 1.2 + 0.1·(3 − 1.44)·1.2 = 1.3872. Local training has one."""
    run = ProductClients(FedBABU(finetune_factor=1.0))
    run.tested(0)
    run.loop.algorithm.finetune(run.loop.engine.client, run.loop.server, 2)
    assert run.loop.engine.client.vector.tolist() == pytest.approx([1.3872, 1.3872])


def test_heads_do_not_travel():
    """One float each way for each of two clients."""
    run = ProductClients(FedBABU())
    run.loop.round()
    assert (run.loop.history.up_bytes, run.loop.history.down_bytes) == (8, 8)


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match=r"finetune_factor: 0 is not allowed; use a number above 0"):
        FedBABU(finetune_factor=0)
    with pytest.raises(ConfigError, match=r"finetuned: 'tail' is not allowed; use all, head or body"):
        FedBABU(finetuned="tail")
    with pytest.raises(ConfigError, match=r"finetuned: 'head' is not allowed; use all or body, as the head is empty"):
        FedBABU(head=[], finetuned="head")
    with pytest.raises(ConfigError, match=r"algorithm.head: \['net'\] is not allowed; use less than the whole model"):
        ProductClients(FedBABU(head=["net"]))
