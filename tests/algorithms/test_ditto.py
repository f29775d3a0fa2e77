"""Ditto against numbers worked by hand: the anchor is the received model, the own model is tested."""

from __future__ import annotations

import pytest
import torch
from lightning.fabric import Fabric

from pfl_lightning.algorithms import Ditto, FedAvg
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.scalar import ScalarClients
from tests.helpers.toy import toy_loop, toy_summary
from tests.helpers.visits import open_client

CONTRACT = [Ditto(lam=0.5, bn_buffers="local")]
LIKE_LOCAL = [Ditto(lam=0.0, first_visit="initial")]


def test_by_hand():
    """v = 2, w = 0, a = 4, lr 0.1, λ = 0.5: v = 2 + 0.1·(2 − 1) = 2.1, then 2.1 + 0.1·(1.9 − 1.05) = 2.185.

    Anchored at the trained w (0.4, 0.76) it would be 2.2553. The global branch is FedAvg's: w = 0.76.
    """
    run = ScalarClients(Ditto(lam=0.5, first_visit="initial"), targets=[4], sizes=[1], steps=2, start=[2.0])
    run.loop.server.vector.zero_()
    record = run.loop.round()
    assert run.client_values() == pytest.approx([2.185], abs=1e-6)
    assert run.server_value == pytest.approx(0.76, abs=1e-6)
    assert record.scalars["rmse_before"] == pytest.approx(2.0)  # v as it was
    assert record.scalars["rmse_after"] == pytest.approx(4 - 2.185, abs=1e-6)  # v as it is, not w


@pytest.mark.parametrize(("personal_epochs", "own"), [(0, 2.0), (2, 2.185), (None, 2.1)])
def test_the_own_model_has_epochs_of_its_own(personal_epochs, own):
    """As above with one epoch for w, which goes to 0.4; v takes 0, 2 or, by default, as many steps as w."""
    algorithm = Ditto(lam=0.5, first_visit="initial", personal_epochs=personal_epochs)
    run = ScalarClients(algorithm, targets=[4], sizes=[1], steps=1, start=[2.0])
    run.loop.server.vector.zero_()
    run.rounds(1)
    assert run.client_values() == pytest.approx([own], abs=1e-6)
    assert run.server_value == pytest.approx(0.4, abs=1e-6)


def test_fine_tuning_trains_the_own_model_without_the_pull():
    """v = 2, w = 0, a = 4: two plain steps, 2.2 and 2.38. With the pull it would be 2.185."""
    run = ScalarClients(Ditto(lam=0.5, first_visit="initial"), targets=[4], sizes=[1], steps=1, start=[2.0])
    run.loop.server.vector.zero_()
    client = open_client(run.loop, 0)
    run.loop.algorithm.finetune(client, run.loop.server, 2)
    assert client.vector.tolist() == pytest.approx([2.38], abs=1e-6)
    assert not client.memory


def test_it_comes_to_rest_between_both():
    """With w held at 0 the fixed point is (a + λ w)/(1 + λ) = 4/1.5 = 8/3: v is carried on, never reset to w."""
    run = ScalarClients(Ditto(lam=0.5), targets=[4], sizes=[1], steps=20)
    for _ in range(10):
        run.loop.server.vector.zero_()
        run.rounds(1)
    assert run.client_values() == pytest.approx([8 / 3], abs=1e-5)


def test_a_client_never_drawn_is_tested_with_the_global_model():
    run = ScalarClients(Ditto(), targets=[4, -2], sizes=[1, 1], steps=2, participation=0.5)
    (drawn,) = run.rounds(1)
    assert run.client_values()[1 - drawn] == run.server_value != 0


@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_the_global_model_is_fedavgs(participation):
    """Bit for bit, with dropout and BatchNorm: the two branches share neither random numbers nor momentum."""
    one, other = (toy_summary(1, a, rounds=4, participation=participation) for a in (Ditto(), FedAvg()))
    assert one["model_sha256"] == other["model_sha256"]


def test_the_own_model_has_batchnorm_statistics_of_its_own():
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), Ditto())
    loop.round()
    open_client(loop, 0)
    loop.algorithm.personalize(loop.engine.client, loop.server)
    statistics = slice(loop.server.layout.num_parameters, None)
    assert not torch.equal(loop.engine.client.vector[statistics], loop.server.vector[statistics])
    assert not torch.equal(loop.engine.client.vector[statistics], loop.server.initial[statistics])


def test_the_own_model_does_not_travel():
    run = ScalarClients(Ditto(), targets=[4, -2], sizes=[1, 1], steps=1)
    run.rounds(1)
    assert (run.loop.history.up_bytes, run.loop.history.down_bytes) == (8, 8)
    assert set(run.loop.store.states[0]) == {"visits", "mask", "personal"}


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match=r"lam: -1 is not allowed; use a number >= 0"):
        Ditto(lam=-1)
    with pytest.raises(ConfigError, match=r"first_visit: 'never' is not allowed; use global or initial"):
        Ditto(first_visit="never")
