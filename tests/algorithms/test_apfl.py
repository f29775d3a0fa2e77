"""APFL against numbers worked by hand: no stale gradients, the factor α in v's step, and α by the paper's formula."""

from __future__ import annotations

import pytest
import torch
from lightning.fabric import Fabric

from pfl_lightning.algorithms import APFL, FedAvg
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.scalar import ScalarClients
from tests.helpers.toy import toy_loop, toy_summary
from tests.helpers.visits import memory_of, open_client

CONTRACT = [APFL(alpha=0.25, alpha_every="step")]
LIKE_LOCAL = [APFL(alpha=1.0, alpha_lr=0.0, first_visit="initial")]


def start_apart(algorithm: APFL, steps: int) -> ScalarClients:
    """A client with v = 2 and a = 4, a server with w = 0."""
    run = ScalarClients(algorithm, targets=[4], sizes=[1], steps=steps, start=[2.0])
    run.loop.server.vector.zero_()
    return run


def own_model(run: ScalarClients) -> tuple[float, float]:
    """The stored v and α."""
    return float(run.loop.store.states[0]["personal"]), float(memory_of(run.loop, 0)["alpha"])


@pytest.mark.parametrize(("alpha_lr", "alpha", "mixed"), [(0.01, 0.56, 1.38), (0.1, 1.0, 2.15), (None, 1.0, 2.15)])
def test_by_hand(alpha_lr, alpha, mixed):
    """v = 2, w = 0, α = 0.5, a = 4, lr 0.1: v̄ = 1, ∇f(w) = −4, ∇f(v̄) = −3, so w = 0.4 and v = 2 + 0.1·0.5·3 = 2.15.

    α's gradient is (v − w)·∇f(v̄) = −6: 0.56 with rate 0.01, beyond 1 with 0.1. v̄ = 0.56·2.15 + 0.44·0.4 = 1.38.
    """
    run = start_apart(APFL(alpha_lr=alpha_lr, first_visit="initial"), steps=1)
    record = run.loop.round()
    assert run.server_value == pytest.approx(0.4)
    assert own_model(run) == pytest.approx((2.15, alpha))
    assert record.scalars["rmse_before"] == pytest.approx(4 - 1)
    assert record.scalars["rmse_after"] == pytest.approx(4 - mixed)
    assert run.client_values() == pytest.approx([mixed])


@pytest.mark.parametrize("every", ["visit", "step"])
def test_three_steps_against_a_plain_loop(every):
    run = start_apart(APFL(alpha_lr=0.01, alpha_every=every, first_visit="initial"), steps=3)
    run.loop.round()
    v, w, alpha = 2.0, 0.0, 0.5
    for step in range(3):
        slope_w, slope = w - 4, alpha * v + (1 - alpha) * w - 4
        moved = alpha - 0.01 * (v - w) * slope
        v, w = v - 0.1 * alpha * slope, w - 0.1 * slope_w
        if every == "step" or step == 0:
            alpha = min(1.0, max(0.0, moved))
    assert own_model(run) == pytest.approx((v, alpha), abs=1e-6)
    assert run.server_value == pytest.approx(w, abs=1e-6)


def test_a_client_mixes_with_the_present_global_model():
    """The one not drawn in the second round keeps v and α but is tested with the new w."""
    run = ScalarClients(APFL(alpha_lr=0.0), targets=[4, -2], sizes=[1, 1], steps=1)
    run.rounds(1)
    v, _ = own_model(run)
    run.loop.server.vector.fill_(7.0)
    assert run.client_values()[0] == pytest.approx(0.5 * v + 0.5 * 7)


def test_a_client_never_drawn_is_tested_with_the_global_model():
    run = ScalarClients(APFL(), targets=[4, -2], sizes=[1, 1], steps=2, participation=0.5)
    (drawn,) = run.rounds(1)
    assert run.client_values()[1 - drawn] == run.server_value != 0


@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_the_global_model_is_fedavgs(participation):
    """Bit for bit, with dropout and momentum: the branch of the mixture leaves no trace in it."""
    one, other = (toy_summary(1, a, rounds=4, participation=participation) for a in (APFL(), FedAvg()))
    assert one["model_sha256"] == other["model_sha256"]


def test_a_fixed_alpha_of_zero_is_fedavg_with_local_statistics():
    """Everything is drawn in each round, so that both start their statistics in the first."""
    settings = {"rounds": 4, "participation": 1.0, "eval_every": 1}
    one = toy_summary(1, APFL(alpha=0.0, alpha_lr=0.0), **settings)
    other = toy_summary(1, FedAvg(bn_buffers="local"), **settings)
    personal = [key for key in other["last"] if "global" not in key]
    assert {key: one["last"][key] for key in personal} == {key: other["last"][key] for key in personal}


def test_the_mixture_has_batchnorm_statistics_of_its_own():
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), APFL())
    loop.round()
    open_client(loop, 0)
    loop.algorithm.personalize(loop.engine.client, loop.server)
    statistics = slice(loop.server.layout.num_parameters, None)
    assert not torch.equal(loop.engine.client.vector[statistics], loop.server.vector[statistics])


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match=r"alpha: 1.5 is not allowed; use a number from 0 to 1"):
        APFL(alpha=1.5)
    with pytest.raises(ConfigError, match=r"alpha_lr: -1 is not allowed; use a number >= 0, or null"):
        APFL(alpha_lr=-1)
    with pytest.raises(ConfigError, match=r"alpha_every: 'epoch' is not allowed; use visit or step"):
        APFL(alpha_every="epoch")
