"""FedAvg, FedProx and Local against numbers worked by hand."""

from __future__ import annotations

import pytest
import torch

from pfl_lightning.algorithms import FedAvg, FedAvgFT, FedProx, FedProxFT, Local
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.scalar import ScalarClients
from tests.helpers.visits import open_client

CONTRACT = [
    FedAvg(),
    FedAvg(bn_buffers="local", weighting="uniform"),
    FedProx(mu=0.1),
    Local(),
    FedAvgFT(),
    FedProxFT(mu=0.1),
]
LIKE_FEDAVG = [FedProx(mu=0.0), FedAvgFT(start_epochs=0), FedProxFT(start_epochs=0, mu=0.0)]


def test_fedavg_by_hand():
    """f_i = ½(x − a_i)², a = (4, −2, 1), w = 0, lr 0.1, two steps: x → 0.1a, then 0.1a + 0.9·0.1a = 0.19a.

    n = (1, 3, 4): w = 0.19·(1·4 − 3·2 + 4·1)/8 = 0.19·0.25 = 0.0475; then each x = 0.81w + 0.19a.
    """
    run = ScalarClients(FedAvg(), targets=[4, -2, 1], sizes=[1, 3, 4], steps=2)
    run.rounds(1)
    assert run.server_value == pytest.approx(0.0475, abs=1e-7)
    run.rounds(1)
    assert run.server_value == pytest.approx(0.81 * 0.0475 + 0.0475, abs=1e-7)


def test_fedavg_with_equal_weights_by_hand():
    """As above, with the plain mean: 0.19·(4 − 2 + 1)/3 = 0.19."""
    run = ScalarClients(FedAvg(weighting="uniform"), targets=[4, -2, 1], sizes=[1, 3, 4], steps=2)
    run.rounds(1)
    assert run.server_value == pytest.approx(0.19, abs=1e-7)


@pytest.mark.parametrize(("mu", "value"), [(1.0, 0.72), (0.5, 0.74)])
def test_fedprox_by_hand(mu, value):
    """a = 4, w = 0, lr 0.1: 0.4, then 0.4 + 0.1·(3.6 − μ·0.4) (FedAvg would be at 0.76)."""
    run = ScalarClients(FedProx(mu=mu), targets=[4], sizes=[2], steps=2)
    run.rounds(1)
    assert run.server_value == pytest.approx(value, abs=1e-7)


def test_fedprox_pulls_to_the_model_of_this_round():
    """The second round from w = 0.72: 0.72 + 0.1·3.28 = 1.048, then 1.048 + 0.1·(2.952 − 0.328) = 1.3104."""
    run = ScalarClients(FedProx(mu=1.0), targets=[4], sizes=[2], steps=2)
    run.rounds(2)
    assert run.server_value == pytest.approx(1.3104, abs=1e-6)


def test_fine_tuning_is_plain_training():
    """From w = 0 with a = 4 two steps of 0.1 without FedProx's pull: 0.76, whatever `local_epochs` says."""
    run = ScalarClients(FedProx(mu=1.0), targets=[4], sizes=[2], steps=5)
    client = open_client(run.loop, 0)
    run.loop.algorithm.finetune(client, run.loop.server, 2)
    assert client.vector.tolist() == pytest.approx([0.76], abs=1e-6)


def test_training_goes_on_from_the_fine_tuned_model_by_hand():
    """a = (4, −2), n = (1, 3), lr 0.1. One step of fine-tuning: 0.1a is tested before training. Two steps of training
    go on from there: 0.271a. So w = 0.271·(4 − 6)/4 = −0.1355, and the next test is of 0.9w + 0.1a.
    """
    run = ScalarClients(FedAvgFT(start_epochs=1), targets=[4, -2], sizes=[1, 3], steps=2)
    record = run.loop.round()
    assert record.per_client["rmse_before"] == pytest.approx([0.9 * 4, 0.9 * 2], abs=1e-6)
    assert record.per_client["rmse_after"] == pytest.approx([0.729 * 4, 0.729 * 2], abs=1e-6)
    assert run.server_value == pytest.approx(-0.1355, abs=1e-7)
    assert run.client_values() == pytest.approx([0.4 - 0.9 * 0.1355, -0.2 - 0.9 * 0.1355], abs=1e-6)


def test_fedprox_ft_is_pulled_to_the_received_model_by_hand():
    """a = 4, w = 0, μ = 1: fine-tuning without a pull to 0.4, then 0.4 + 0.1·(3.6 − 0.4) = 0.72."""
    run = ScalarClients(FedProxFT(mu=1.0), targets=[4], sizes=[2], steps=1)
    run.rounds(1)
    assert run.server_value == pytest.approx(0.72, abs=1e-7)


def test_local_by_hand():
    """a = (4, −2), one client a round: 0.4, 0.76 after two steps each; the other stays, the server never moves."""
    run = ScalarClients(Local(), targets=[4, -2], sizes=[1, 1], steps=2, participation=0.5)
    values = {0: 0.0, 1: 0.0}
    for _ in range(4):
        (drawn,) = run.rounds(1)
        for _ in range(2):
            values[drawn] += 0.1 * ([4, -2][drawn] - values[drawn])
        assert run.client_values() == pytest.approx([values[0], values[1]], abs=1e-6)
    assert run.server_value == 0.0
    assert run.loop.history.up_bytes == run.loop.history.down_bytes == 0


def test_bytes_of_a_round():
    """One float up and down for each of three clients."""
    run = ScalarClients(FedAvg(), targets=[1, 2, 3], sizes=[1, 1, 1], steps=1)
    run.rounds(1)
    assert (run.loop.history.up_bytes, run.loop.history.down_bytes) == (12, 12)


def test_a_negative_mu_is_refused():
    with pytest.raises(ConfigError, match=r"mu: -1 is not allowed; use a number >= 0"):
        FedProx(mu=-1)


def test_the_model_on_the_server_is_no_view_of_a_clients():
    run = ScalarClients(FedAvg(), targets=[4], sizes=[1], steps=1)
    run.rounds(1)
    run.loop.engine.client.vector.fill_(9.0)
    assert run.server_value == pytest.approx(0.4)
    assert torch.equal(run.loop.server.initial, torch.zeros(1))
