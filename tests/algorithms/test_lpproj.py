"""lp-proj against numbers worked by hand: only u travels, and θ and u are pulled to each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric

from pfl_lightning.algorithms import LpProj
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.scalar import ScalarClients
from tests.helpers.toy import toy_loop
from tests.helpers.visits import open_client

CONTRACT = [LpProj(lam=0.5, dim=4, inner_steps=2, outer_steps=3, orthogonal=True)]
LIKE_LOCAL = [LpProj(lam=0.0, outer_steps=None)]


class Along(LpProj):
    """With P = (0.6, 0.8)."""

    def projection(self, client):
        return torch.tensor([[0.6, 0.8]])


@pytest.mark.parametrize(("p", "theta", "u"), [(2, [0.34, 0.42], 1.708), (1, [0.22, 0.26], 1.8)])
def test_by_hand(p, theta, u):
    """P = (0.6, 0.8), θ = 0, u = 2, a = (1, 1), λ = 2, both rates 0.1, one step of θ; r = u − Pθ = 2.

    p = 2: θ = 0.1·(1, 1) + 0.2·2·(0.6, 0.8) = (0.34, 0.42), Pθ = 0.54, u = 2 − 0.2·1.46 = 1.708.
    p = 1: θ = 0.1·(1, 1) + 0.2·(0.6, 0.8) = (0.22, 0.26), u = 2 − 0.2 = 1.8.
    """
    algorithm = Along(lam=2, p=p, dim=1, lr=0.1, inner_steps=1, outer_steps=1)
    run = ScalarClients(algorithm, targets=[[1, 1]], sizes=[1], steps=1)
    run.loop.server.memory["u"] = torch.tensor([2.0])
    run.rounds(1)
    assert run.loop.store.states[0]["personal"].tolist() == pytest.approx(theta)
    assert run.loop.server.memory["u"].tolist() == pytest.approx([u])
    assert torch.equal(run.loop.server.vector, torch.zeros(2))


@pytest.mark.parametrize(("p", "inner", "outer"), [(1, 3, 2), (2, 3, 2), (2, 2, 3)])
def test_two_rounds_against_a_plain_loop(p, inner, outer):
    """Two clients of 1 and 3 samples, β = 0.5, real random directions; NumPy, both from zero."""
    targets, weights = np.array([[1.0, 2.0, -3.0], [0.5, 4.0, 1.0]]), np.array([0.25, 0.75])
    algorithm = LpProj(lam=0.7, p=p, dim=2, lr=0.2, inner_steps=inner, outer_steps=outer, beta=0.5)
    run = ScalarClients(algorithm, targets=targets.tolist(), sizes=[1, 3], steps=1)
    run.rounds(2)
    rows = algorithm.projection(run.loop.engine.client).double().numpy()
    assert np.allclose(np.linalg.norm(rows, axis=1), 1)
    theta, u = np.zeros((2, 3)), np.zeros(2)
    for _ in range(2):
        copies = np.stack([u, u])
        for i in range(2):
            for _ in range(outer):
                for _ in range(inner):
                    gap = copies[i] - rows @ theta[i]
                    slope = np.sign(gap) if p == 1 else gap
                    theta[i] -= 0.1 * (theta[i] - targets[i] - 0.7 * rows.T @ slope)
                gap = copies[i] - rows @ theta[i]
                copies[i] -= 0.2 * 0.7 * (np.sign(gap) if p == 1 else gap)
        u = 0.5 * u + 0.5 * weights @ copies
    assert np.allclose(run.loop.server.memory["u"], u, atol=1e-5)
    for i in range(2):
        assert np.allclose(run.loop.store.states[i]["personal"], theta[i], atol=1e-5)


def test_a_long_task_gradient_is_clipped_but_not_the_penalty():
    """a = (300, 400), clip 5: the gradient (3, 4) is left; u = 0 = Pθ leaves no penalty. One step: 0.1·(3, 4)."""
    run = ScalarClients(Along(p=2, clip=5.0, dim=1, inner_steps=1, outer_steps=1), [[300, 400]], [1], steps=1)
    run.rounds(1)
    assert run.loop.store.states[0]["personal"].tolist() == pytest.approx([0.3, 0.4])


def test_the_penalty_is_added_after_clipping():
    """As above with u = 2 and λ = 2: the penalty's slope −2·2·(0.6, 0.8) = (−2.4, −3.2) joins the clipped (−3, −4), so
    one step gives 0.1·(5.4, 7.2). Clipped together it would be 0.1·(3, 4).
    """
    algorithm = Along(lam=2, p=2, clip=5.0, dim=1, lr=0.1, inner_steps=1, outer_steps=1)
    run = ScalarClients(algorithm, targets=[[300, 400]], sizes=[1], steps=1)
    run.loop.server.memory["u"] = torch.tensor([2.0])
    run.rounds(1)
    assert run.loop.store.states[0]["personal"].tolist() == pytest.approx([0.54, 0.72])


def test_fine_tuning_keeps_the_penalty_and_leaves_u():
    """One epoch is one step here, the first of `test_by_hand` with p = 2. Plain training would give (0.1, 0.1)."""
    run = ScalarClients(Along(lam=2, p=2, dim=1, lr=0.1), targets=[[1, 1]], sizes=[1], steps=5)
    run.loop.server.memory["u"] = torch.tensor([2.0])
    client = open_client(run.loop, 0)
    run.loop.algorithm.finetune(client, run.loop.server, 1)
    assert client.vector.tolist() == pytest.approx([0.34, 0.42])
    assert run.loop.server.memory["u"].tolist() == [2]


def test_only_u_travels():
    run = ScalarClients(LpProj(dim=3), targets=[[1] * 9, [2] * 9], sizes=[1, 1], steps=1)
    run.rounds(1)
    assert (run.loop.history.up_bytes, run.loop.history.down_bytes) == (2 * 12, 2 * 12)


def test_directions_are_common_and_orthogonal_on_request():
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), LpProj(orthogonal=True))
    rows = loop.algorithm.projection(loop.engine.client)
    assert torch.allclose(rows @ rows.T, torch.eye(10), atol=1e-5)
    open_client(loop, 3)
    assert torch.equal(loop.algorithm.projection(loop.engine.client), rows)


def test_a_client_never_drawn_has_the_initial_model_and_without_samples_u_stays():
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), LpProj())
    open_client(loop, 0)
    loop.algorithm.personalize(loop.engine.client, loop.server)
    assert torch.equal(loop.engine.client.vector, loop.server.initial)
    loop.engine.client.train_indices = loop.engine.client.train_indices[:0]
    loop.algorithm.fit(loop.engine.client, loop.server)
    assert torch.equal(loop.engine.client.memory["u"], torch.zeros(10))


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match=r"p: 3 is not allowed; use 1 or 2"):
        LpProj(p=3)
    with pytest.raises(ConfigError, match=r"dim: 0 is not allowed; use a whole number >= 1"):
        LpProj(dim=0)
    with pytest.raises(ConfigError, match=r"lam: -1 is not allowed; use a number >= 0"):
        LpProj(lam=-1)
    for key in ("beta", "clip", "inner_steps"):
        with pytest.raises(ConfigError, match=rf"{key}: 0 is not allowed"):
            LpProj(**{key: 0})
