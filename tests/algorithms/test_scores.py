"""Scores against plain computations that share no code with them."""

from __future__ import annotations

import pytest
import torch
from lightning.fabric import Fabric
from torch.nn.functional import cross_entropy

from pfl_lightning.algorithms import FedAvg
from pfl_lightning.algorithms.parts import scores
from pfl_lightning.algorithms.parts.validation import hold_out
from pfl_lightning.data import IID, Fashion10k
from pfl_lightning.loop import FederatedFabricLoop, LoopConfig
from pfl_lightning.model import masks
from pfl_lightning.model.client import ClientModule
from pfl_lightning.nets import SmallCNN
from pfl_lightning.tasks import Classification
from tests.helpers.toy import toy_loop
from tests.helpers.visits import open_client


def opened_client(client: int = 3) -> ClientModule:
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), FedAvg(), rounds=2)
    loop.fit()
    open_client(loop, client)
    loop.engine.client.vector.copy_(loop.server.vector)
    return loop.engine.client


def loop_over_samples(client: ClientModule) -> torch.Tensor:
    """Mean of squared gradients by one backward pass for each sample."""
    task = client.task.eval()
    x, y = client.data.batch(client.data.train_indices(client.id), client.vector.device)
    parameters = list(task.parameters())
    total = [torch.zeros_like(p) for p in parameters]
    for i in range(len(y)):
        loss = cross_entropy(task(x[i : i + 1]), y[i : i + 1])
        for t, g in zip(total, torch.autograd.grad(loss, parameters), strict=True):
            t += g**2
    return torch.cat([t.reshape(-1) for t in total]) / len(y)  # the toy has no four-dimensional tensors


@pytest.mark.parametrize("entries_at_once", [1, 400, 1 << 25])
def test_fisher_is_the_loop_over_samples(monkeypatch, entries_at_once):
    monkeypatch.setattr(scores, "ENTRIES_AT_ONCE", entries_at_once)
    client = opened_client()
    kept = client.vector.clone()
    score = scores.fisher(client)
    torch.testing.assert_close(score, loop_over_samples(client), rtol=1e-4, atol=1e-9)
    assert score.max() > 0
    assert torch.equal(client.vector, kept)


def test_fisher_in_the_order_of_the_layout_for_convolutions():
    """A convolution's weights lie in channels-last order in the vector: a permuted score would be another one."""
    data = Fashion10k(num_clients=500, partition=IID())
    data.setup(0)
    task = Classification(SmallCNN)
    loop = FederatedFabricLoop(Fabric(accelerator="cpu", devices=1), task, FedAvg(), data, LoopConfig())
    open_client(loop, 0)
    client = loop.engine.client
    score = scores.fisher(client)
    expected = torch.zeros_like(score)
    for index in client.train_indices:
        client.compute_gradient(client.data.batch(index[None], client.vector.device))
        expected += client.grad**2 / client.num_samples
    torch.testing.assert_close(score, expected, rtol=1e-3, atol=1e-8)


def test_fisher_of_batches_squares_the_gradient_of_each_batch():
    """A batch size above the number of samples gives the squared gradient of the client's whole loss."""
    client = opened_client()
    client.local = type(client.local)(batch_size=10_000)
    x, y = client.data.batch(client.data.train_indices(client.id), client.vector.device)
    task = client.task.eval()
    gradients = torch.autograd.grad(cross_entropy(task(x), y), list(task.parameters()))
    expected = torch.cat([g.reshape(-1) for g in gradients]) ** 2
    client.task.train()
    batch = scores.fisher_batch(client)
    torch.testing.assert_close(batch, expected, rtol=1e-4, atol=1e-9)
    assert batch.sum() < scores.fisher(client).sum()  # Jensen


@pytest.mark.parametrize("batch_size", [7, 10_000])
def test_eq_6_to_the_letter_is_the_squared_gradient_of_the_mean_loss(batch_size):
    """The same for any batch size, unlike `fisher_batch`; and not above it, because a mean is squared."""
    client = opened_client()
    client.local = type(client.local)(batch_size=batch_size)
    x, y = client.data.batch(client.data.train_indices(client.id), client.vector.device)
    task = client.task.eval()
    gradients = torch.autograd.grad(cross_entropy(task(x), y), list(task.parameters()))
    expected = torch.cat([g.reshape(-1) for g in gradients]) ** 2
    client.task.train()  # BatchNorm would take each batch's own statistics
    literal = scores.fisher_literal(client)
    torch.testing.assert_close(literal, expected, rtol=1e-4, atol=1e-9)
    assert literal.sum() <= scores.fisher_batch(client).sum() * (1 + 1e-5)


def test_fisher_sees_no_sample_that_is_held_out():
    client = opened_client()
    whole = scores.fisher(client)
    hold_out(client, 0.5)
    assert client.num_samples == 15
    assert not torch.allclose(scores.fisher(client), whole)


def test_scores_by_hand():
    """θ_i = (1, −2, 3), θ_g = (0.5, −2, 5): Eq. 19 (0.25, 0, 4); legacy |0.5·1|, 0, |−2·3| = (0.5, 0, 6).

    Eq. 5, θ̃ = (1, 2, 3) → θ = (1.5, 2.1, 2): (0.5, 0.1, 1). Perturbation, θ = (2, −1), g = (0.5, 4): |gθ| = (1, 4),
    with the Hessian term |−1 + ½| = 0.5 and |4 + ½·16| = 12.
    """
    own, received = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([0.5, -2.0, 5.0])
    assert scores.obp(own, received).tolist() == [0.25, 0.0, 4.0]
    assert scores.obp_legacy(own, received).tolist() == [0.5, 0.0, 6.0]
    moved = scores.gradient(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.5, 2.1, 2.0]))
    assert moved.tolist() == pytest.approx([0.5, 0.1, 1.0], abs=1e-6)
    assert masks.top_share(moved, 0.34).tolist() == [False, False, True]
    theta, g = torch.tensor([2.0, -1.0]), torch.tensor([0.5, 4.0])
    assert scores.perturbation(theta, g).tolist() == [1.0, 4.0]
    assert scores.perturbation(theta, g, hessian=True).tolist() == [0.5, 12.0]
    assert own.tolist() == [1.0, -2.0, 3.0]  # arguments stay as they are
    assert theta.tolist() == [2.0, -1.0]


SELECTORS = {
    "above_quantile": lambda score, spans: masks.above_quantile(score, 0.75),
    "top_share": lambda score, spans: masks.top_share(score, 0.25),
    "top_share per tensor": lambda score, spans: masks.top_share(score, 0.25, spans),
    "largest": lambda score, spans: masks.largest(score, 20),
    "layer min-max": lambda score, spans: masks.above_quantile(masks.min_max(score, spans), 0.75),
}


@pytest.mark.parametrize("selector", SELECTORS)
def test_any_score_works_with_any_selector(selector):
    client = opened_client()
    own, received = client.theta.clone(), torch.linspace(-1, 1, client.layout.num_parameters)
    client.compute_gradient(next(client.batches("0")))
    made = [
        scores.obp(own, received), scores.obp_legacy(own, received), scores.gradient(own, received),
        scores.perturbation(own, client.grad), scores.fisher(client), scores.fisher_batch(client),
    ]  # fmt: skip
    for score in made:
        chosen = SELECTORS[selector](score, client.layout.parameter_spans)
        assert chosen.dtype == torch.bool
        assert chosen.shape == own.shape
        assert 0 < int(chosen.sum()) <= 0.25 * len(own) + 1
