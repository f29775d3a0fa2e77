"""Loss scaling for float16."""

from __future__ import annotations

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision.amp import MixedPrecision

from pfl_lightning.algorithms import FedAvg, FedOBP
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.model.loss_scale import INITIAL_FACTOR, LossScale
from tests.helpers.toy import toy_loop


def float16() -> Fabric:
    """Fabric itself replaces 16-mixed by bfloat16 on CPUs, unless it is given the real thing."""
    return Fabric(accelerator="cpu", devices=1, plugins=MixedPrecision("16-mixed", "cpu"))


def test_float16_trains_and_leaves_float32_models():
    loop = toy_loop(float16(), FedOBP(quantile=0.5), rounds=3)
    record = loop.round()
    assert record.scalars["loss_after"] < record.scalars["loss_before"]
    loop.fit()
    plain = toy_loop(Fabric(accelerator="cpu", devices=1), FedOBP(quantile=0.5), rounds=3)
    plain.fit()
    assert loop.server.vector.dtype == torch.float32
    assert not torch.equal(loop.server.vector, plain.server.vector), "it was float32"
    torch.testing.assert_close(loop.server.vector, plain.server.vector, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("size", [1e-3, 1e2], ids=["fits", "overflows"])
def test_methods_see_the_gradient_unscaled(size):
    """A gradient of 100 times 2^15 is beyond float16's 65 504, so that the factor has to come down first."""
    gradients = []
    for fabric in (float16(), Fabric(accelerator="cpu", devices=1)):
        client = toy_loop(fabric, FedAvg()).engine.client
        client.load_state(0, 1, None, client.vector.clone())
        client.task.eval()
        batch = next(client.batches("0"))
        client.compute_gradient(batch, lambda batch, task=client.task: size * task(batch[0]).sum())
        gradients.append(client.grad.clone())
        if client.loss_scale:
            assert (client.loss_scale.factor < INITIAL_FACTOR) == (size > 1)
    torch.testing.assert_close(*gradients, rtol=0.01, atol=0.01 * size)
    assert gradients[0].any()


def test_a_visit_starts_with_the_same_factor_whoever_came_before():
    client = toy_loop(float16(), FedAvg()).engine.client
    client.loss_scale.factor = 2.0
    client.load_state(0, 1, None, client.vector.clone())
    assert client.loss_scale.factor == INITIAL_FACTOR


def test_a_gradient_that_is_not_finite_without_a_scale_either_is_left_as_it_is():
    """The model has diverged; the mean of the round says so and names the client."""
    scale = LossScale()
    gradient = torch.tensor([1.0, float("nan")])
    tries = 1
    while not scale.undo(gradient):
        tries += 1
    assert (tries, scale.factor) == (16, 1.0)


@pytest.mark.parametrize(("precision", "scaled"), [("16-mixed", True), ("bf16-mixed", False), ("32-true", False)])
def test_only_float16_has_a_loss_scale(precision, scaled):
    fabric = float16() if scaled else Fabric(accelerator="cpu", devices=1, precision=precision)
    assert (LossScale.for_precision(fabric) is not None) == scaled


def test_float16_is_refused_for_several_clients_per_step():
    with pytest.raises(ConfigError, match=r"loop.clients_per_step: must be 1 with fabric.precision 16-mixed"):
        toy_loop(float16(), FedAvg(), clients_per_step=2)
