"""pFedFDA against numbers worked by hand: the Bayes classifier, β by cross-validation, and never a test label."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric

from pfl_lightning.algorithms import PFedFDA
from pfl_lightning.algorithms.parts.gaussian import (
    Gaussians,
    bayes_classifier,
    choose_beta,
    estimate,
    halves,
    mixture_loss,
)
from pfl_lightning.algorithms.pfedfda import global_gaussians, priors, triangle
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.points import opened, point_loop, weights
from tests.helpers.scalar import ScalarClients
from tests.helpers.toy import fingerprint, toy_loop, toy_summary
from tests.helpers.visits import open_client

CONTRACT = [PFedFDA(beta=0.5)]

LOCAL = Gaussians(torch.tensor([[1.0], [5.0]]), torch.tensor([[2.0]]))
GLOBAL = Gaussians(torch.tensor([[0.0], [3.0]]), torch.tensor([[1.0]]))


def test_classifier_by_hand():
    """β = ½: μ = (0.5, 4), Σ = 1.5. W = μ/Σ = (1/3, 8/3), bias = −μ²/(2Σ) + ln π with π = (¾, ¼).

    The boundary is at 2.25 + (1.5/3.5) ln 3, and at z = 2 the posterior is (0.843162, 0.156838).
    """
    mixed = LOCAL.mixed(GLOBAL, torch.tensor([0.5, 0.5]))
    assert mixed.means.flatten().tolist() == [0.5, 4.0]
    assert float(mixed.covariance) == 1.5
    weight, bias = bayes_classifier(mixed, torch.tensor([0.75, 0.25]))
    assert weight.flatten().tolist() == pytest.approx([1 / 3, 8 / 3])
    assert bias.tolist() == pytest.approx([-0.371015, -6.719628], abs=1e-5)
    boundary = float((bias[0] - bias[1]) / (weight[1] - weight[0]))
    assert boundary == pytest.approx(2.25 + 1.5 / 3.5 * math.log(3), abs=1e-5)
    assert (2 * weight.flatten() + bias).softmax(0).tolist() == pytest.approx([0.843162, 0.156838], abs=1e-5)


def test_classifier_against_numpy():
    rng = np.random.default_rng(1)
    means, root = rng.normal(size=(3, 4)), rng.normal(size=(4, 6))
    covariance = root @ root.T
    weight, bias = bayes_classifier(
        Gaussians(torch.from_numpy(means), torch.from_numpy(covariance)), torch.tensor([0.2, 0.3, 0.5]).double()
    )
    inverse = np.linalg.inv((1 - 1e-4) * covariance + 1e-4 * np.trace(covariance) / 4 * np.eye(4))
    assert weight.numpy() == pytest.approx(means @ inverse)
    assert bias.numpy() == pytest.approx(np.log([0.2, 0.3, 0.5]) - [0.5 * m @ inverse @ m for m in means], rel=1e-6)


def test_estimate_by_hand():
    """Class 0 at 1, 2 and 3 has its mean 2. Class 1 at 8 and 10 has two samples only and takes the fallback's 7, no
    class 2 takes it too. Scatter 1 + 0 + 1 + 1 + 9 = 12 around these means over n − 1 = 4, plus 1e-4, plus the ridge.
    """
    fallback = Gaussians(torch.full((3, 1), 7.0), torch.eye(1))
    z, y = torch.tensor([[1.0], [2.0], [3.0], [8.0], [10.0]]), torch.tensor([0, 0, 0, 1, 1])
    means, covariance = estimate(z, y, fallback, ridge=0.5)
    assert means.flatten().tolist() == [2, 7, 7]
    assert float(covariance) == pytest.approx(3 + 1e-4 + 0.5)


def test_slopes_against_differences():
    torch.manual_seed(0)
    y = torch.arange(12) % 3
    z = torch.randn(12, 4, dtype=torch.float64) + y[:, None]
    common = Gaussians(torch.rand(3, 4, dtype=torch.float64), torch.eye(4, dtype=torch.float64))
    own = estimate(z, y, common, ridge=0.1)
    shares = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    beta = torch.tensor([0.3, 0.6], dtype=torch.float64)
    _, slopes = mixture_loss(own, common, beta, shares, z, y)
    for i in range(2):
        shift = 1e-6 * torch.eye(2, dtype=torch.float64)[i]
        high, low = (mixture_loss(own, common, beta + s, shares, z, y)[0] for s in (shift, -shift))
        assert float(slopes[i]) == pytest.approx(float(high - low) / 2e-6, rel=1e-5)


def test_beta_is_a_minimum_of_the_cross_validated_loss():
    """Of a plain computation of that loss: better than the start, and no small step inside [0, 1]² improves it."""
    torch.manual_seed(3)
    y = torch.arange(20) % 2
    z = torch.randn(20, 3, dtype=torch.float64) + 0.8 * y[:, None]
    common = Gaussians(torch.tensor([[0.3] * 3, [0.6] * 3]).double(), 1.5 * torch.eye(3).double())
    shares = torch.tensor([0.5, 0.5]).double()

    def loss(beta):
        total = 0.0
        for own, other in ((halves(y)), (halves(y))[::-1]):
            local = estimate(z[own], y[own], common, 0.1)
            weight, bias = bayes_classifier(local.mixed(common, torch.tensor(beta).double()), shares)
            total += float(torch.nn.functional.cross_entropy(z[other] @ weight.T + bias, y[other]))
        return total

    for single in (False, True):
        found = choose_beta(z, y, common, shares, 0.1, single).tolist()
        assert 0 < found[0] < 1
        assert (found[0] == found[1]) == single
        steps = [(1, 1), (-1, -1)] if single else [(1, 0), (-1, 0), (0, 1), (0, -1)]
        for step in steps:
            near = [min(1.0, max(0.0, b + 0.02 * s)) for b, s in zip(found, step, strict=True)]
            assert loss(found) <= loss(near) + 1e-7
        assert loss(found) < loss([0.5, 0.5]) - 1e-3


@pytest.mark.parametrize("single", [False, True])
def test_beta_is_asked_for_the_sum_over_both_halves_and_its_slopes(monkeypatch, single):
    """The function that the optimizer gets, against a plain computation of the loss and its differences."""
    torch.manual_seed(4)
    y = torch.arange(20) % 2
    z = torch.randn(20, 3, dtype=torch.float64) + 0.8 * y[:, None]
    common = Gaussians(torch.tensor([[0.3] * 3, [0.6] * 3]).double(), 1.5 * torch.eye(3).double())
    shares = torch.tensor([0.5, 0.5]).double()
    given = {}

    def minimum(objective, start, **settings):
        given["objective"] = objective
        return SimpleNamespace(x=start)

    monkeypatch.setattr("pfl_lightning.algorithms.parts.gaussian.minimize", minimum)
    choose_beta(z, y, common, shares, 0.1, single)

    def loss(beta):
        total = 0.0
        for own, other in ((halves(y)), (halves(y))[::-1]):
            local = estimate(z[own], y[own], common, 0.1)
            weight, bias = bayes_classifier(local.mixed(common, torch.tensor(beta, dtype=torch.float64)), shares)
            total += float(torch.nn.functional.cross_entropy(z[other] @ weight.T + bias, y[other]))
        return total

    beta = [0.3] if single else [0.3, 0.8]
    value, slopes = given["objective"](np.array(beta))
    assert value == pytest.approx(loss([beta[0], beta[-1]]))
    assert slopes.shape == (len(beta),)
    for i in range(len(beta)):
        high, low = ([b + step * (j == i) for j, b in enumerate(beta)] for step in (1e-5, -1e-5))
        assert slopes[i] == pytest.approx((loss([high[0], high[-1]]) - loss([low[0], low[-1]])) / 2e-5, rel=1e-5)


def test_halves_are_stratified_and_leave_single_samples_out():
    first, second = halves(torch.tensor([1, 0, 1, 2, 1, 0, 1]))
    assert sorted(first.tolist() + second.tolist()) == [0, 1, 2, 4, 5, 6]
    for half in (first, second):
        assert sorted(torch.tensor([1, 0, 1, 2, 1, 0, 1])[half].tolist()) == [0, 1, 1]
    assert halves(torch.tensor([0, 1, 2])) is None


def test_without_two_samples_of_a_class_only_the_global_counts():
    common = Gaussians(torch.rand(3, 2).double(), torch.eye(2).double())
    shares = torch.full((3,), 1 / 3).double()
    assert choose_beta(torch.randn(3, 2).double(), torch.tensor([0, 1, 2]), common, shares, 1.0, False).tolist() == [
        0,
        0,
    ]


def head_of(loop, client):
    """The head that this client would be tested with."""
    _, weight, bias = weights(opened(loop, client, "personalize"))
    return weight, bias


def test_chosen_betas_are_the_same_on_two_ranks():
    """The contract is tested with a fixed β, since choosing one takes most of the time."""
    one, two = (toy_summary(world, PFedFDA(), rounds=2, participation=0.6) for world in (1, 2))
    assert fingerprint(one) == fingerprint(two)


def test_test_labels_are_never_seen():
    """Other labels in the test data: every number of the run stays the same but for the results of the tests."""
    train = [[([1.0], 0), ([1.5], 0), ([3.0], 1), ([4.0], 1)], [([0.0], 0), ([2.0], 0), ([5.0], 1)]]
    loops = [point_loop(PFedFDA(), train, [[([2.5], label)]] * 2, eval_every=1) for label in (0, 1)]
    for loop in loops:
        for _ in range(3):
            loop.round()
    one, other = loops
    assert torch.equal(one.server.vector, other.server.vector)
    assert one.store.digest() == other.store.digest()
    for client in (0, 1):
        for a, b in zip(head_of(one, client), head_of(other, client), strict=True):
            assert torch.equal(a, b)


def test_priors_are_the_training_shares():
    loop = point_loop(PFedFDA(), [[([1.0], 0), ([1.0], 0), ([1.0], 0), ([1.0], 1)]], [[([1.0], 1)] * 9])
    open_client(loop, 0)
    assert priors(loop.engine.client).tolist() == pytest.approx([0.7501 / 1.0002, 0.2501 / 1.0002])


@pytest.mark.parametrize(("samples", "shares"), [(1, [1.0001 / 1.0002, 0.0001 / 1.0002]), (0, [0.5, 0.5])])
def test_priors_of_a_client_that_lacks_the_last_class_or_all_samples(samples, shares):
    loop = point_loop(PFedFDA(), [[([1.0], 0)]], [[([1.0], 1)]])
    client = open_client(loop, 0)
    client.train_indices = client.train_indices[:samples]
    assert priors(client).tolist() == pytest.approx(shares)


def test_the_head_after_training_is_that_of_the_client_s_own_mixture():
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), PFedFDA(beta=0.7))
    client = opened(loop, 3)
    loop.algorithm.fit(client, loop.server)
    size = loop.server.memory["means"].shape[1]
    rows, columns = torch.triu_indices(size, size)
    covariance = torch.zeros(size, size, dtype=torch.float64)
    covariance[rows, columns] = covariance[columns, rows] = client.memory["covariance"].double()
    weight, bias = bayes_classifier(Gaussians(client.memory["means"].double(), covariance), priors(client))
    assert torch.allclose(client.task.head.weight.double(), weight, atol=1e-5)
    assert torch.allclose(client.task.head.bias.double(), bias, atol=1e-5)


def test_the_first_class_means_are_drawn_from_the_run_s_seed():
    """Between 0 and 1, the same on every rank, another draw for another seed. The first covariance is the identity."""
    loops = []
    for seed in (1, 1, 2):
        torch.rand(seed)  # whatever was drawn before must not count
        loops.append(toy_loop(Fabric(accelerator="cpu", devices=1), PFedFDA(), seed=seed))
    one, again, other = (loop.server.memory["means"] for loop in loops)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert 0 <= float(one.min()) < float(one.max()) < 1
    assert torch.equal(global_gaussians(loops[0].server).covariance, torch.eye(8, dtype=torch.float64))


def test_a_round_by_hand():
    """β fixed at ½, no training: the global means become ½ (local + random start), the covariance ½ (local + 1).

    Client 0 has class 0 at 1, 2 and 3 (mean 2, covariance 1 + 1e-4 + 1) and no class 1.
    """
    loop = point_loop(PFedFDA(beta=0.5), [[([1.0], 0), ([2.0], 0), ([3.0], 0)]], local_epochs=0)
    start = loop.server.memory["means"].flatten().tolist()
    loop.round()
    assert loop.server.memory["means"].flatten().tolist() == pytest.approx([(start[0] + 2) / 2, start[1]])
    assert loop.server.memory["covariance"].tolist() == pytest.approx([(2 + 1e-4 + 1) / 2])
    # body 1, means 2, covariance 1; the head of 4 stays where it is
    assert (loop.history.up_bytes, loop.history.down_bytes) == (16, 16)


def test_the_body_is_trained_under_the_global_head_and_the_head_never_by_gradients():
    """One step of lr 0.1 on z = b·x, x = 2, y = 0, b = 1: the gradient is Σ_c (p_c − y_c) W_c · x with p the posterior
    of the global Gaussians and the client's priors.
    """
    loop = point_loop(PFedFDA(beta=1.0), [[([2.0], 0)]])
    common = global_gaussians(loop.server)
    open_client(loop, 0)
    weight, bias = bayes_classifier(common, priors(loop.engine.client))
    p = (2 * weight.flatten() + bias).softmax(0)
    slope = float(((p - torch.tensor([1.0, 0.0])) * weight.flatten()).sum()) * 2
    initial = loop.server.vector.clone()
    loop.round()
    body, *_ = weights(opened(loop, 0))
    assert body == pytest.approx(1 - 0.1 * slope, abs=1e-6)
    head = loop.engine.client.layout.where(["net.head.weight", "net.head.bias"])
    assert torch.equal(loop.server.vector[head], initial[head])


def test_the_head_stands_still_while_the_body_learns():
    """Three steps of lr 0.1 with μ = (1, −1) and Σ = 1: x = 2 of class 0 and x = 1 of class 1, so the priors are equal.

    W = μ and the biases are equal, so p_1(x) = 1/(1 + exp(2bx)), and the slope of the body b is the mean of −2·2·p_1(2)
    and 2·1·p_0(1). A head that learned too would make the second and third step others.
    """
    loop = point_loop(PFedFDA(beta=1.0), [[([2.0], 0), ([1.0], 1)]], local_epochs=3)
    loop.server.memory["means"].copy_(torch.tensor([[1.0], [-1.0]]))
    loop.server.memory["covariance"].fill_(1.0)
    client = opened(loop, 0)
    loop.algorithm.fit(client, loop.server)
    body = 1.0
    for _ in range(3):
        p_1, p_0 = 1 / (1 + math.exp(4 * body)), 1 / (1 + math.exp(-2 * body))
        body -= 0.1 * (-4 * p_1 + 2 * p_0) / 2
    assert weights(client)[0] == pytest.approx(body, abs=1e-5)


def test_the_estimate_is_of_the_features_seen_in_training():
    """As above with three samples of each kind: b runs through b_0, b_1, b_2, and the mean of class 0 over the three
    epochs is 2(b_0 + b_1 + b_2)/3, where the trained body would give 2 b_3.
    """
    loop = point_loop(PFedFDA(beta=1.0), [[([2.0], 0)] * 3 + [([1.0], 1)] * 3], local_epochs=3)
    loop.server.memory["means"].copy_(torch.tensor([[1.0], [-1.0]]))
    loop.server.memory["covariance"].fill_(1.0)
    client = opened(loop, 0)
    loop.algorithm.fit(client, loop.server)
    bodies = [1.0]
    for _ in range(3):
        p_1, p_0 = 1 / (1 + math.exp(4 * bodies[-1])), 1 / (1 + math.exp(-2 * bodies[-1]))
        bodies.append(bodies[-1] - 0.1 * (-4 * p_1 + 2 * p_0) / 2)
    mean = sum(bodies[:3]) / 3
    assert client.memory["means"].flatten().tolist() == pytest.approx([2 * mean, mean], abs=1e-5)


@pytest.mark.parametrize("single", [False, True])
def test_one_beta_for_both_on_request(single):
    torch.manual_seed(5)
    points = [(z.tolist(), i % 2) for i, z in enumerate(torch.randn(16, 2) + 0.5 * (torch.arange(16) % 2)[:, None])]
    beta = opened(point_loop(PFedFDA(single_beta=single, ridge=0.1), [points]), 0).memory["beta"]
    assert (float(beta[0]) == float(beta[1])) == single


def test_clients_count_by_their_samples():
    """β = 1, no training: class 0 at 2 three times and, elsewhere, at 4 nine times. Its mean becomes 3.5, not 3."""
    loop = point_loop(PFedFDA(beta=1.0), [[([2.0], 0)] * 3, [([4.0], 0)] * 9], local_epochs=0)
    loop.round()
    assert float(loop.server.memory["means"][0, 0]) == pytest.approx(3.5)


def test_a_client_never_drawn_makes_a_head_of_its_own():
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), PFedFDA(), participation=0.2)
    cohort = loop.round().cohort
    undrawn = [c for c in range(7) if c not in cohort]
    heads = [
        opened(loop, c, "personalize").layout.views(loop.engine.client.vector.clone())["net.head.weight"]
        for c in undrawn[:2]
    ]
    assert not torch.equal(*heads)


def test_the_triangle_is_the_whole_covariance():
    root = torch.randn(4, 4)
    matrix = root @ root.T
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), PFedFDA())
    loop.server.memory |= {"means": torch.zeros(3, 4), "covariance": triangle(matrix)}
    assert len(triangle(matrix)) == 10
    assert torch.allclose(global_gaussians(loop.server).covariance.float(), (matrix + matrix.T) / 2, atol=1e-6)


def test_bad_settings_are_refused():
    for key, value in (("ridge", -1), ("beta", 2)):
        with pytest.raises(ConfigError, match=rf"{key}: {value} is not allowed"):
            PFedFDA(**{key: value})
    with pytest.raises(ConfigError, match=r"task: PFedFDA works on classes"):
        ScalarClients(PFedFDA(), targets=[1], sizes=[1], steps=1)
