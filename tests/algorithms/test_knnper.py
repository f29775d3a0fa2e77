"""kNN-Per against numbers worked by hand: probabilities are mixed, not logits; votes come from training data alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from pfl_lightning.algorithms import FedAvg, FedPAC, KNNPer
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.nets import Net
from tests.algorithms.test_features import built
from tests.helpers.points import opened, point_loop
from tests.helpers.scalar import ScalarClients
from tests.helpers.toy import toy_summary

CONTRACT = [KNNPer(k=4, capacity=0.7, validation=0.3)]
LIKE_FEDAVG = [KNNPer(lam=0.0), KNNPer(k=0)]


def two_layers(spec):
    return Net(nn.Linear(6, 5), nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, spec.num_classes)))


FAR = math.sqrt(2 * math.log(2))


def by_hand(algorithm, test=(([0.0, 0.0], 1),), **settings):
    """D = 2, neighbours at d² = 0 and 2 ln 2 with labels 0 and 1; the model says (0.2, 0.8) everywhere."""
    loop = point_loop(algorithm, [[([0.0, 0.0], 0), ([FAR, 0.0], 1)]], [list(test)], **settings)
    views = loop.engine.client.layout.views(loop.server.vector)
    views["net.head.weight"].zero_()
    views["net.head.bias"].copy_(torch.tensor([0.2, 0.8]).log())
    return loop


def sums(loop) -> list[float]:
    return loop.algorithm.test(opened(loop, 0, "personalize"), loop.server).tolist()


@pytest.mark.parametrize(("lam", "p"), [(0.5, 0.566667), (0.75, 0.45), (1.0, 1 / 3), (0.0, 0.8)])
def test_by_hand(lam, p):
    """s = (1, exp(−2 ln 2/2)) = (1, 0.5), p_kNN = (2/3, 1/3). λ = 0.5: (0.4333, 0.5667), class 1; λ = 0.75: class 0."""
    correct, loss, count = sums(by_hand(KNNPer(lam=lam)))
    assert (correct, count) == (float(p > 0.5), 1)
    assert loss == pytest.approx(-math.log(p), abs=1e-5)


def test_the_nearest_alone():
    assert sums(by_hand(KNNPer(k=1, lam=0.5)))[1] == pytest.approx(-math.log(0.5 * 0 + 0.5 * 0.8), abs=1e-5)


def test_any_head_that_ends_the_net_is_accepted():
    """The vote needs features and logits, and not that one linear layer lies between them."""
    task, data = built(two_layers)
    KNNPer().check(task, data)
    with pytest.raises(ConfigError, match="FedPAC needs one linear layer with a bias as the head"):
        FedPAC().check(task, data)


def test_far_away_points_still_vote():
    """At a distance where exp(−d²) is zero in any float, the nearer neighbour has the whole vote."""
    correct, loss, _ = sums(by_hand(KNNPer(lam=1.0), test=[([1e4, 0.0], 1)]))
    assert (correct, loss) == (1.0, pytest.approx(0.0, abs=1e-5))


def test_votes_need_no_training_and_no_test_labels():
    """A client that was never drawn, with the other label in its test data: the same probabilities."""
    one, other = (sums(by_hand(KNNPer(lam=0.5), test=[([0.0, 0.0], label)])) for label in (0, 1))
    assert math.exp(-one[1]) + math.exp(-other[1]) == pytest.approx(1.0)


def test_the_fine_tuned_copy_votes_too():
    """Fine-tuning has no rate to move anything, so the fine-tuned column repeats the vote: λ = 0.75 gives p = 0.45."""
    loop = by_hand(KNNPer(lam=0.75), finetune_epochs=1, finetune_lr=1e-30, eval_every=1, rounds=1, local_epochs=0)
    before, finetuned, model = loop.evaluate()[0, :3].tolist()
    assert before[1] == pytest.approx(-math.log(0.45), abs=1e-5)
    assert finetuned == before
    assert model[1] == pytest.approx(-math.log(0.8), abs=1e-5)


@pytest.mark.parametrize(("capacity", "voters"), [(0.1, 1), (0.5, 5), (1.0, 10)])
def test_only_a_share_of_the_samples_votes(capacity, voters):
    """Ten samples at one place, five of each class. λ = 1: the vote is the share of class 1 among those chosen."""
    samples = [([1.0, 1.0], i % 2) for i in range(10)]
    loop = point_loop(KNNPer(k=10, lam=1.0, capacity=capacity), [samples], [[([1.0, 1.0], 1)]])
    client = opened(loop, 0, "personalize")
    _, labels = loop.algorithm.datastore(client)
    assert len(labels) == voters
    share = float(labels.sum()) / voters
    assert sums(loop)[1] == pytest.approx(-math.log(max(share, 1e-12)), abs=1e-4)


def test_training_is_fedavgs():
    one, other = (toy_summary(1, a, rounds=3) for a in (KNNPer(k=3), FedAvg()))
    for key in ("model_sha256", "clients_sha256", "up_bytes", "down_bytes"):
        assert one[key] == other[key]
    assert one["last"] != other["last"]


def test_a_client_chooses_its_own_lam():
    """Two clouds that the model takes for each other: of 20 held-out samples the vote gets all, the model none.

    Any λ with λ·1 > (1 − λ)·0.8 − (1 − λ)·0.2 is right everywhere, i.e. λ > 0.375: the smallest of the grid is 0.38.
    """
    cloud = [([float(sign), 0.01 * i], int(sign > 0)) for i in range(20) for sign in (-1, 1)]
    loop = point_loop(KNNPer(k=3, validation=0.5, sigma=0.01), [cloud], [cloud[:2]])
    views = loop.engine.client.layout.views(loop.server.vector)
    views["net.head.weight"].copy_(torch.tensor([[0.5, 0.0], [-0.5, 0.0]]) * math.log(4))
    views["net.head.bias"].zero_()
    client = opened(loop, 0, "personalize")
    assert loop.algorithm.choose(client, *loop.algorithm.datastore(client)) == pytest.approx(0.38)


def test_the_test_uses_the_lam_that_was_chosen():
    """The clouds of the test before: λ = 0.38 is chosen, whatever `lam` says."""
    cloud = [([float(sign), 0.01 * i], int(sign > 0)) for i in range(20) for sign in (-1, 1)]

    def tested(**settings):
        loop = point_loop(KNNPer(k=3, sigma=0.01, **settings), [cloud], [cloud[:2]])
        views = loop.engine.client.layout.views(loop.server.vector)
        views["net.head.weight"].copy_(torch.tensor([[0.5, 0.0], [-0.5, 0.0]]) * math.log(4))
        views["net.head.bias"].zero_()
        return sums(loop)

    assert tested(validation=0.5, lam=0.9) == pytest.approx(tested(lam=0.38))
    assert tested(validation=0.5, lam=0.9) != pytest.approx(tested(lam=0.9))


def test_the_choice_of_lam_against_numpy():
    """Random points that the model often mistakes, k = 3: the first ten of the datastore are held out, the other twenty
    vote for them.
    """
    points = np.random.default_rng(2).normal(size=(30, 2))
    samples = [(x.tolist(), int(x[0] + x[1] > 0)) for x in points]
    loop = point_loop(KNNPer(k=3, validation=0.34, sigma=0.5), [samples])
    views = loop.engine.client.layout.views(loop.server.vector)
    views["net.head.weight"].copy_(torch.tensor([[1.0, -0.5], [-0.7, 0.3]]))
    views["net.head.bias"].copy_(torch.tensor([0.1, -0.1]))
    client = opened(loop, 0, "personalize")
    z, y = loop.algorithm.datastore(client)
    x, labels = z.double().numpy(), y.numpy()
    model = np.exp(x[:10] @ np.array([[1.0, -0.5], [-0.7, 0.3]]).T + [0.1, -0.1])
    model /= model.sum(1, keepdims=True)
    correct = np.zeros(101)
    for i in range(10):
        squares = ((x[i] - x[10:]) ** 2).sum(1)
        near = np.argsort(squares)[:3]
        votes = np.exp(-squares[near] / (2 * 0.5))
        vote = np.bincount(labels[10:][near], votes, minlength=2) / votes.sum()
        for step in range(101):
            mixed = step / 100 * vote + (1 - step / 100) * model[i]
            correct[step] += mixed.argmax() == labels[i]
    chosen = loop.algorithm.choose(client, z, y)
    assert chosen == pytest.approx(correct.argmax() / 100)
    assert 0 < chosen < 1


def test_bad_settings_are_refused():
    for key, value in (("k", -1), ("lam", 1.5), ("sigma", 0), ("capacity", 2), ("validation", 1)):
        with pytest.raises(ConfigError, match=rf"{key}: {value} is not allowed"):
            KNNPer(**{key: value})
    with pytest.raises(ConfigError, match=r"task: KNNPer works on classes"):
        ScalarClients(KNNPer(), targets=[1], sizes=[1], steps=1)
