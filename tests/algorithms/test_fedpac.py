"""FedPAC against numbers worked by hand: what the clients tell, the quadratic program, class means, combined heads."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric

from pfl_lightning.algorithms import FedPAC, FedRep
from pfl_lightning.algorithms.parts.head_weights import head_weights, moments, on_simplex
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.points import opened, point_loop, weights
from tests.helpers.scalar import ScalarClients
from tests.helpers.toy import toy_loop, toy_summary
from tests.helpers.visits import memory_of

CONTRACT = [FedPAC(body_epochs=1)]

TWO = [[([1.0], 0), ([3.0], 0)], [([2.0], 0), ([4.0], 1)]]
"""Client 1: class 0 at 1 and 3. Client 2: class 0 at 2, class 1 at 4."""


def with_head_zero(loop):
    """The loop, its head set to zero: cross-entropy then has no slope in the body."""
    for vector in (loop.server.initial, loop.server.vector):
        loop.engine.client.layout.views(vector)["net.head.weight"].zero_()
        loop.engine.client.layout.views(vector)["net.head.bias"].zero_()
    return loop


def test_what_clients_tell_by_hand():
    """h = π·mean: (2, 0) and (½·2, ½·4) = (1, 2). V = (1/n) Σ (π mean‖z‖² − π²‖mean‖²): (5 − 4)/2 = 0.5 and
    ((½·4 − ¼·4) + (½·16 − ¼·16))/2 = 2.5.
    """
    told = [moments(torch.tensor([x for x, _ in c]), torch.tensor([y for _, y in c]), 2) for c in TWO]
    assert [h.flatten().tolist() for h, _ in told] == [[2, 0], [1, 2]]
    assert [float(v) for _, v in told] == [0.5, 2.5]


def test_weights_by_hand():
    """‖h_1 − h_2‖² = 5: for client 1 diag(0.5, 7.5) → α ∝ (1/0.5, 1/7.5), for client 2 diag(5.5, 2.5)."""
    h = torch.tensor([[2.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
    variances = torch.tensor([0.5, 2.5], dtype=torch.float64)
    found = [head_weights(row, h @ h.T, variances, 1e-3).tolist() for row in (0, 1)]
    assert found == [pytest.approx([0.9375, 0.0625]), pytest.approx([0.3125, 0.6875])]


def test_opposite_errors_cancel():
    """h = (0, 1, −1), V = 1. Of the first client M_jl = h_j h_l, so A = [[1, 0, 0], [0, 2, −1], [0, −1, 2]] and
    A·1 = 1: all three count alike. Without the cross terms −1 it would be (½, ¼, ¼).

    Of the second, M_jl = (1 − h_j)(1 − h_l) = [[1, 0, 2], [0, 0, 0], [2, 0, 4]], A = [[2, 0, 2], [0, 1, 0], [2, 0, 5]].
    A⁻¹1 = (½, 1, 0): (⅓, ⅔, 0).
    """
    h = torch.tensor([[0.0], [1.0], [-1.0]], dtype=torch.float64)
    found = [head_weights(row, h @ h.T, torch.ones(3).double(), 1e-3).tolist() for row in (0, 1)]
    assert found == [pytest.approx([1 / 3] * 3), pytest.approx([1 / 3, 2 / 3, 0])]


def test_small_weights_are_dropped():
    h = torch.tensor([[0.0], [100.0]], dtype=torch.float64)
    assert head_weights(0, h @ h.T, torch.tensor([0.5, 0.5]).double(), 1e-3).tolist() == [1, 0]


def test_the_program_against_a_search_over_supports():
    """On a subset of the clients the minimum with Σα = 1 is A⁻¹1 / 1ᵀA⁻¹1; the best one with α ≥ 0 is the answer."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        y = rng.normal(size=(5, 3))
        matrix = np.diag(rng.uniform(0.1, 1, 5)) + y @ y.T
        best = np.inf
        for size in range(1, 6):
            for support in itertools.combinations(range(5), size):
                part = np.linalg.solve(matrix[np.ix_(support, support)], np.ones(size))
                if (part >= 0).all():
                    best = min(best, 1 / part.sum())
        alpha = on_simplex(matrix)
        assert alpha.sum() == pytest.approx(1)
        assert (alpha >= 0).all()
        assert alpha @ matrix @ alpha == pytest.approx(best, rel=1e-6)


def test_no_variance_at_all():
    """A client with a single sample has V = 0 and keeps its head; if nobody has any preference, all count alike."""
    assert on_simplex(np.diag([0.0, 3.0])) == pytest.approx([1, 0], abs=1e-6)
    assert on_simplex(np.zeros((3, 3))) == pytest.approx([1 / 3] * 3)


def test_a_round_by_hand():
    """No training (all epochs 0), heads set apart: the prototypes are the class means over all samples, class 0
    (1 + 3 + 2)/3 = 2 and class 1 4; client 1's head is 0.9375 of its own and 0.0625 of client 2's.
    """

    class HeadsApart(FedPAC):
        def fit(self, client, server):
            client.layout.views(client.vector)["net.head.bias"].fill_(float(client.id))
            super().fit(client, server)

    loop = point_loop(HeadsApart(head_epochs=0, body_epochs=0), TWO)
    views = loop.engine.client.layout.views(loop.server.initial)
    views["net.head.weight"].zero_()
    views["net.head.bias"].zero_()
    loop.round()
    assert loop.server.memory["prototypes"].flatten().tolist() == pytest.approx([2, 4])
    assert weights(opened(loop, 0))[2].tolist() == pytest.approx([0.0625] * 2)
    assert weights(opened(loop, 1))[2].tolist() == pytest.approx([0.6875] * 2)
    # up: body 1, head 4, h 2, means 2, counts 2, V 1; down: body 1, head 4, prototypes 2
    assert (loop.history.up_bytes, loop.history.down_bytes) == (2 * 4 * 12, 2 * 4 * 7)


def test_alignment_by_hand():
    """One sample z = 1 of class 0, body 1 and learning rate 0.1, head zero: CE has no gradient in the body, the
    alignment to c_0 = 3 has 2(1 − 3) = −4: the body goes to 1.4. A class without a
    global mean is drawn to the client's own: 1.
    """
    for known, body in ((True, 1.4), (False, 1.0)):
        loop = with_head_zero(point_loop(FedPAC(head_epochs=0, body_epochs=1), [[([1.0], 0)]]))
        loop.server.memory["prototypes"].fill_(3.0)
        loop.server.memory["known"][0 if known else 1] = True
        assert weights(opened(loop, 0, "download"))[0] == 1
        loop.algorithm.fit(loop.engine.client, loop.server)
        assert weights(loop.engine.client)[0] == pytest.approx(body)


def test_there_is_no_alignment_in_the_first_round():
    """Samples at 1 and 3, head zero: their mean 2 would draw the body. A class that nobody has stays unknown."""
    loop = with_head_zero(point_loop(FedPAC(head_epochs=0, body_epochs=1), TWO[:1]))
    loop.round()
    assert weights(opened(loop, 0))[0] == 1
    assert loop.server.memory["known"].tolist() == [True, False]


def test_the_alignment_is_a_mean_over_samples_and_features():
    """Features (1, 2) and (3, 0) of class 0 with its mean at 0, head zero, λ = ½: the slope of the body is
    ½ · 2 · (1 + 4 + 9)/(2 · 2) = 3.5, and one step of 0.1 leaves 0.65.
    """
    loop = with_head_zero(
        point_loop(FedPAC(align=0.5, head_epochs=0, body_epochs=1), [[([1.0, 2.0], 0), ([3.0, 0.0], 0)]])
    )
    loop.server.memory["known"][0] = True
    loop.algorithm.fit(opened(loop, 0), loop.server)
    assert weights(loop.engine.client)[0] == pytest.approx(0.65)


def test_moments_are_those_before_training_and_class_means_those_after():
    """z = 1 and 3 of class 0: h = 2, V = (5 − 4)/2 = 0.5. The pull to 3 has the slope 2 · ((1 − 3)·1 + 0·3)/2 = −2, so
    the body becomes 1.2 and the class mean 2.4.
    """
    loop = with_head_zero(point_loop(FedPAC(head_epochs=0, body_epochs=1), [[([1.0], 0), ([3.0], 0)]]))
    loop.server.memory["prototypes"].fill_(3.0)
    loop.server.memory["known"][0] = True
    memory = opened(loop, 0).memory
    loop.algorithm.fit(loop.engine.client, loop.server)
    assert weights(loop.engine.client)[0] == pytest.approx(1.2)
    assert (memory["moments"].flatten().tolist(), float(memory["variance"])) == ([2, 0], 0.5)
    assert memory["means"].flatten().tolist() == pytest.approx([2.4, 0])
    assert memory["counts"].tolist() == [2, 0]


def test_every_sample_counts_once_in_a_class_mean():
    """Class 0 at 1 and 3, and at 6 elsewhere: (1 + 3 + 6)/3, not the mean 4 of the clients' means 2 and 6. Class 1, at
    5 and 8, 8, 8: 29/4.
    """
    clients = [[([1.0], 0), ([3.0], 0), ([5.0], 1)], [([6.0], 0), *[([8.0], 1)] * 3]]
    loop = point_loop(FedPAC(head_epochs=0, body_epochs=0), clients)
    loop.round()
    assert loop.server.memory["prototypes"].flatten().tolist() == pytest.approx([10 / 3, 29 / 4])


def test_a_class_that_nobody_has_keeps_its_mean():
    loop = point_loop(FedPAC(head_epochs=0, body_epochs=0), [[([1.0], 0)]])
    loop.server.memory["prototypes"].fill_(7.0)
    loop.server.memory["known"][1] = True
    loop.round()
    assert loop.server.memory["prototypes"].flatten().tolist() == pytest.approx([1, 7])
    assert loop.server.memory["known"].tolist() == [True, True]


@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_without_alignment_and_mixing_it_is_fedrep(participation):
    """But for the dropout that both see, bit for bit."""
    settings = {"head_epochs": 1, "body_epochs": 2}
    pac = FedPAC(align=0.0, mix_heads=False, head_lr=None, **settings)
    one, other = (toy_summary(1, a, rounds=4, participation=participation) for a in (pac, FedRep(**settings)))
    assert (one["model_sha256"], one["clients_sha256"]) == (other["model_sha256"], other["clients_sha256"])


def test_who_is_not_drawn_keeps_its_head_and_gets_the_body():
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), FedPAC(body_epochs=1), participation=0.4)
    loop.round()
    heads = {c: memory_of(loop, c)["head"].clone() for c in loop.store.states}
    cohort = loop.round().cohort
    for client, head in heads.items():
        inside = loop.server.memory["in_head"]
        vector = opened(loop, client).vector
        assert torch.equal(vector[~inside], loop.server.vector[~inside])
        assert torch.equal(vector[inside], head) == (client not in cohort)


def test_the_head_learns_at_its_own_rate():
    """Balanced classes at z = ±1, head zero, lr of the head 0.5: the gradient of the weight is ∓½, so ±0.25."""
    algorithm = FedPAC(head_lr=0.5, body_epochs=0, mix_heads=False)
    loop = with_head_zero(point_loop(algorithm, [[([1.0], 0), ([-1.0], 1)]]))
    loop.round()
    assert weights(opened(loop, 0))[1].flatten().tolist() == pytest.approx([0.25, -0.25])


def test_bad_settings_are_refused():
    for key, value in (("align", -1), ("head_lr", 0), ("least_weight", 1), ("head_epochs", -1)):
        with pytest.raises(ConfigError, match=rf"{key}: {value} is not allowed"):
            FedPAC(**{key: value})
    with pytest.raises(ConfigError, match=r"task"):
        ScalarClients(FedPAC(), targets=[1], sizes=[1], steps=1)
