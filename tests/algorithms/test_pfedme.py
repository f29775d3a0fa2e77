"""pFedMe against numbers worked by hand: θ is tested, w_i is uploaded, and neither is a view of the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric
from torch.optim import SGD

from pfl_lightning.algorithms import FedAvg, PFedMe
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.loop import FederatedFabricLoop, LoopConfig
from pfl_lightning.tasks import Classification
from tests.helpers.scalar import ScalarClients
from tests.helpers.toy import ToyData, ToyNet, toy_loop
from tests.helpers.visits import open_client

CONTRACT = [PFedMe(lam=5, personal_lr=0.05, inner_steps=2, outer_steps=3, beta=1.5)]
SETTINGS = {"lam": 2, "personal_lr": 0.1, "lr": 0.05, "inner_steps": 2, "outer_steps": 2, "mu": 0}


@pytest.mark.parametrize(("beta", "server"), [(1, 0.041208), (2, 0.082416)])
def test_by_hand(beta, server):
    """a = 4, w = 0, λ = 2, η_p = 0.1, η = 0.05, K = R = 2, μ = 0; each step θ += 0.1·(4 − θ − 2·(θ − w_i)).

    θ: 0.4, 0.68; w_i = 0.1·0.68 = 0.068; θ: 0.8896, 1.03632; w_i = 0.068 + 0.1·(1.03632 − 0.068) = 0.164832.
    a = −2 is −½ of it: θ = −0.51816, w_i = −0.082416. The mean is 0.041208.
    """
    run = ScalarClients(PFedMe(**SETTINGS, beta=beta), targets=[4, -2], sizes=[1, 1], steps=1)
    record = run.loop.round()
    assert run.server_value == pytest.approx(server, abs=1e-6)
    assert run.client_values() == pytest.approx([1.03632, -0.51816], abs=1e-6)
    assert record.scalars["rmse_after"] == pytest.approx((4 - 1.03632 + 2 - 0.51816) / 2, abs=1e-6)  # θ, not w_i


def test_the_second_round_starts_from_the_new_global_model():
    """Independent loop in plain Python, with weight decay μ and unequal clients."""
    run = ScalarClients(PFedMe(**{**SETTINGS, "mu": 0.3}), targets=[4, -2], sizes=[1, 3], steps=1)
    run.rounds(3)
    w = 0.0
    for _ in range(3):
        thetas, anchors = [], []
        for a in (4, -2):
            theta, anchor = w, w
            for _ in range(2):
                for _ in range(2):
                    theta -= 0.1 * (theta - a + 2 * (theta - anchor) + 0.3 * theta)
                anchor -= 0.05 * 2 * (anchor - theta)
            thetas.append(theta)
            anchors.append(anchor)
        w = 0.25 * anchors[0] + 0.75 * anchors[1]
    assert run.server_value == pytest.approx(w, abs=1e-6)
    assert run.client_values() == pytest.approx(thetas, abs=1e-6)


def test_many_steps_find_the_proximal_point():
    """argmin ½(θ − 4)² + ½·2·θ² = 4/3 for w_i = 0 (η = 0 keeps it there). A client never drawn finds it as well."""
    settings = {**SETTINGS, "lr": 0.0, "inner_steps": 100}
    run = ScalarClients(PFedMe(**settings), targets=[4, 4], sizes=[1, 1], steps=1, participation=0.5)
    assert len(run.rounds(1)) == 1
    assert run.client_values() == pytest.approx([4 / 3, 4 / 3], abs=1e-5)
    assert run.server_value == 0.0


def test_fedavg_is_a_special_case():
    """lr · lam = 1, K = 1, μ = 0, β = 1, all batches: plain steps of rate η_p, bit for bit, BatchNorm and dropout."""

    def model(algorithm):
        data = ToyData()
        data.setup(1)
        task = Classification(ToyNet, lambda p: SGD(p, lr=0.125))
        config = LoopConfig(3, 0.4, local_epochs=2, batch_size=8, eval_every=0)
        loop = FederatedFabricLoop(Fabric(accelerator="cpu", devices=1), task, algorithm, data, config, seed=1)
        loop.fit()
        return loop.server.vector

    like = PFedMe(lam=4, lr=0.25, personal_lr=0.125, inner_steps=1, outer_steps=None, mu=0)
    assert np.allclose(model(like), model(FedAvg()), atol=1e-7)


def test_a_client_without_samples_uploads_what_it_got():
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), PFedMe())
    open_client(loop, 0)
    loop.engine.client.train_indices = loop.engine.client.train_indices[:0]
    loop.algorithm.fit(loop.engine.client, loop.server)
    assert torch.equal(loop.engine.client.memory["shared"], loop.server.vector)


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match=r"lr: 0.1 is not allowed; use at most 1/lam = 0.06667"):
        PFedMe(lr=0.1)
    with pytest.raises(ConfigError, match=r"inner_steps: 0 is not allowed; use a whole number >= 1"):
        PFedMe(inner_steps=0)
    with pytest.raises(ConfigError, match=r"beta: 0 is not allowed; use a number above 0"):
        PFedMe(beta=0)
    with pytest.raises(ConfigError, match=r"outer_steps: -1 is not allowed; use a whole number >= 0, or null"):
        PFedMe(outer_steps=-1)
