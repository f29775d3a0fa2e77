"""FLUTE against numbers worked by hand: the norm is not squared, all classes count in T, the server's step returns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pfl_lightning.algorithms import FLUTE, FedPer
from pfl_lightning.algorithms.flute import simplex_deviation, simplex_target, step
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.points import opened, point_loop, weights
from tests.helpers.toy import toy_summary
from tests.helpers.visits import open_client

CONTRACT = [FLUTE(head_epochs=1)]

H = torch.tensor([[2.0], [1.0]])
BOTH, FIRST = torch.tensor([True, True]), torch.tensor([True, False])


def gradient(classes, decay=False):
    weight = H.clone().requires_grad_()
    value = (
        0.25 * simplex_deviation(weight, simplex_target(classes)) + 0.0025 * weight.square().sum()
        if decay
        else simplex_deviation(weight, simplex_target(classes))
    )
    value.backward()
    return value.item(), weight.grad.flatten().tolist()


def test_regulariser_by_hand():
    """HHᵀ/‖HHᵀ‖ = [[.8, .4], [.4, .2]], T = [[.5, −.5], [−.5, .5]]: R = √(.09 + .81 + .81 + .09) = √1.8."""
    value, slope = gradient(BOTH)
    assert value == pytest.approx(math.sqrt(1.8), abs=1e-6)
    assert slope == pytest.approx([-0.089443, 0.178885], abs=1e-5)


def test_a_class_that_the_client_lacks():
    """T has 0.5 in its first corner alone, not 1: it divides by all classes. R = √(.09 + .16 + .16 + .04) = 0.67082."""
    assert simplex_target(FIRST).tolist() == [[0.5, 0.0], [0.0, 0.0]]
    value, slope = gradient(FIRST)
    assert value == pytest.approx(0.670820, abs=1e-6)
    assert slope == pytest.approx([-0.119257, 0.238514], abs=1e-5)


def test_the_clients_gradient_by_hand():
    assert gradient(BOTH, decay=True)[1] == pytest.approx([-0.012361, 0.049721], abs=1e-5)


def test_the_target_has_length_one():
    assert float(torch.linalg.norm(simplex_target(torch.ones(7, dtype=torch.bool)))) == pytest.approx(1)


def test_a_head_of_zero_or_of_the_right_shape_has_no_slope():
    target = simplex_target(BOTH)
    for weight in (torch.zeros(2, 1), torch.tensor([[1.0], [-1.0]])):
        assert torch.isfinite(step(weight, target, 0.5)).all()
        assert step(weight, target, 0.5) == pytest.approx(weight, abs=1e-5)


def still(server_lr=0.5, clients=1, second=1):
    """Nobody trains; the head is H, and the client has both classes, or class 0 alone if the second is that too."""
    points = [([1.0], 0), ([2.0], second)]
    loop = point_loop(FLUTE(head_epochs=0, server_lr=server_lr), [points] * clients, local_epochs=0)
    for vector in (loop.server.initial, loop.server.vector):
        loop.engine.client.layout.views(vector)["net.head.weight"].copy_(H)
    return loop


def test_the_servers_step_comes_back_to_the_client():
    """One client, step 0.5: (2, 1) − 0.5·(−0.089443, 0.178885). With two clients the mean halves the step. Without
    class 1 it is (2, 1) − 0.5·(−0.119257, 0.238514).
    """
    loop = still()
    loop.round()
    assert weights(opened(loop, 0))[1].flatten().tolist() == pytest.approx([2.044721, 0.910557], abs=1e-5)
    loop = still(clients=2)
    loop.round()
    assert weights(opened(loop, 1))[1].flatten().tolist() == pytest.approx([2.022361, 0.955279], abs=1e-5)
    loop = still(second=0)
    loop.round()
    assert weights(opened(loop, 0))[1].flatten().tolist() == pytest.approx([2.059628, 0.880743], abs=1e-5)


def test_bytes():
    """Body 1, weight 2 (the bias stays), and the two classes in one byte; down body and weight."""
    loop = still()
    loop.round()
    assert (loop.history.up_bytes, loop.history.down_bytes) == (4 * 3 + 1, 4 * 3)
    loop = still(server_lr=0.0)
    loop.round()
    assert (loop.history.up_bytes, loop.history.down_bytes) == (4, 4)


def test_features_are_decayed_as_a_sum_and_only_with_the_body():
    loop = point_loop(FLUTE(simplex=0, head_decay=0, feature_decay=0.5), [[([1.0], 0), ([3.0], 1)]])
    open_client(loop, 0)
    batch = torch.tensor([[1.0], [3.0]]), torch.tensor([0, 1])
    target = simplex_target(BOTH)
    with torch.no_grad():
        plain, decayed = (loop.algorithm.loss(loop.engine.client, target, batch, decay) for decay in (0.0, 0.5))
    assert float(decayed - plain) == pytest.approx(0.5 * (1 + 9), abs=1e-5)


def plain_loss(p, x, y, settings, feature_decay):
    """The client's loss of p = (body, two weights, two biases), in NumPy."""
    target = [[0.5, -0.5], [-0.5, 0.5]] if 1 in y else [[0.5, 0], [0, 0]]
    z = p[0] * x
    logits = np.outer(z, p[1:3]) + p[3:]
    cross_entropy = np.mean(np.log(np.exp(logits).sum(1)) - logits[range(len(y)), y])
    gram = np.outer(p[1:3], p[1:3])
    deviation = np.sqrt(np.sum((gram / np.sqrt(np.sum(gram**2)) - target) ** 2))
    decay = settings["head_decay"] * np.sum(p[1:3] ** 2) + feature_decay * np.sum(z**2)
    return cross_entropy + settings["simplex"] * deviation + decay


def plain_step(p, moving, loss):
    """One step of rate 0.1 on some of the entries, slopes by differences."""
    slopes = [(loss(p + d) - loss(p - d)) / 2e-6 for d in 1e-6 * np.eye(5)]
    return p - 0.1 * np.array(slopes) * moving


@pytest.mark.parametrize("classes", [(0, 1), (0, 0)])
def test_both_phases_against_a_plain_computation(classes):
    """One step of the head alone, without the decay of features, then one step of everything with all terms. The second
    client lacks class 1.
    """
    settings = {"simplex": 0.5, "head_decay": 0.1, "feature_decay": 0.05}
    algorithm = FLUTE(head_epochs=1, server_lr=0.0, **settings)
    loop = point_loop(algorithm, [[([1.0], classes[0]), ([2.0], classes[1])]], local_epochs=1)
    views = loop.engine.client.layout.views(loop.server.vector)
    views["net.head.weight"].copy_(H)
    views["net.head.bias"].copy_(torch.tensor([0.3, -0.2]))
    client = opened(loop, 0)
    client.vector.copy_(loop.server.vector)
    algorithm.fit(client, loop.server)
    x, y = np.array([1.0, 2.0]), np.array(classes)
    p = plain_step(np.array([1, 2, 1, 0.3, -0.2]), [0, 1, 1, 1, 1], lambda p: plain_loss(p, x, y, settings, 0.0))
    p = plain_step(p, [1] * 5, lambda p: plain_loss(p, x, y, settings, 0.05))
    body, weight, bias = weights(client)
    assert [body, *weight.flatten().tolist(), *bias.tolist()] == pytest.approx(p.tolist(), abs=1e-5)


@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_without_all_that_it_is_fedper(participation):
    plain = FLUTE(head_epochs=0, simplex=0.0, head_decay=0.0, feature_decay=0.0, server_lr=0.0)
    one, other = (toy_summary(1, a, rounds=4, participation=participation) for a in (plain, FedPer()))
    for key in ("model_sha256", "clients_sha256", "up_bytes", "last"):
        assert one[key] == other[key]


def test_bad_settings_are_refused():
    for key in ("head_epochs", "simplex", "head_decay", "feature_decay", "server_lr"):
        with pytest.raises(ConfigError, match=rf"{key}: -1 is not allowed; use a number >= 0"):
            FLUTE(**{key: -1})
    with pytest.raises(ConfigError, match=r"head: \['net.body'\] is not allowed; use null: FLUTE's head is the net's"):
        FLUTE(head=["net.body"])
    with pytest.raises(ConfigError, match=r"two classes or more"):
        point_loop(FLUTE(), [[([1.0], 0)]], num_classes=1)
