"""SoftMerge against weights worked by hand."""

from __future__ import annotations

import pytest
import torch

from pfl_lightning.algorithms import SoftMerge
from pfl_lightning.foundation.errors import ConfigError
from tests.algorithms.test_fedobp import model_of
from tests.helpers.points import opened, point_loop, weights
from tests.helpers.scalar import ScalarClients

CONTRACT = [SoftMerge(quantile=0.5, sharpness=0.5)]
LIKE_FEDAVG = [SoftMerge(quantile=1.0)]


def merged(algorithm: SoftMerge) -> list[float]:
    """Own model (1, 2, 3, 5), received (0, 0, 0, 0)."""
    run = ScalarClients(algorithm, targets=[[0.0] * 4], sizes=[1], steps=1)
    run.rounds(1)
    run.loop.store.states[0]["memory/theta"] = torch.tensor([1.0, 2.0, 3.0, 5.0])
    run.loop.server.vector.zero_()
    return model_of(run, 0).tolist()


def test_weights_by_hand():
    """Scores (1, 4, 9, 25), q = 1/3: the threshold is the second smallest, τ = 4.

    Weights 1 − 4/9 and 1 − 4/25 on 3 and 5 give 5/3 and 4.2: θ − τ/θ. With sharpness ½: θ − √τ = 1 and 3.
    """
    assert merged(SoftMerge(quantile=0.34)) == pytest.approx([0, 0, 3 - 4 / 3, 5 - 4 / 5], abs=1e-6)
    assert merged(SoftMerge(quantile=0.34, sharpness=0.5)) == pytest.approx([0, 0, 1, 3], abs=1e-6)


def test_a_great_sharpness_is_the_hard_switch():
    assert merged(SoftMerge(quantile=0.34, sharpness=1000.0)) == pytest.approx([0, 0, 3, 5], abs=1e-6)


def test_quantile_0_keeps_all_but_the_least():
    """τ = 1, the smallest score."""
    assert merged(SoftMerge(quantile=0.0)) == pytest.approx([0, 2 - 1 / 2, 3 - 1 / 3, 5 - 1 / 5], abs=1e-6)


def test_the_threshold_is_that_of_the_classifier():
    """Own head (1, …, 6), own body 100, received 0, q = ½ inside the head: τ = 3² is the third smallest score there.

    The body's score of 100² is no threshold for the head, and the body comes from the server.
    """
    loop = point_loop(SoftMerge(quantile=0.5, scope="classifier"), [[([1.0, 2.0], 0)]])
    loop.round()
    theta = loop.store.states[0]["memory/theta"]
    views = loop.server.layout.views(theta)
    views["net.body.weight"].fill_(100.0)
    views["net.head.weight"].copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    views["net.head.bias"].copy_(torch.tensor([5.0, 6.0]))
    loop.server.vector.zero_()
    body, weight, bias = weights(opened(loop, 0))
    assert body == 0
    assert weight.flatten().tolist() == pytest.approx([0, 0, 0, 4 - 9 / 4], abs=1e-5)
    assert bias.tolist() == pytest.approx([5 - 9 / 5, 6 - 9 / 6], abs=1e-5)


def test_a_sharpness_of_0_is_refused():
    with pytest.raises(ConfigError, match=r"sharpness: 0 is not allowed; use a number above 0"):
        SoftMerge(sharpness=0)
