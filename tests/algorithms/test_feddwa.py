"""FedDWA against numbers worked by hand: weights per client, and the mixed model is the one that is tested."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pfl_lightning.algorithms import FedDWA, Local
from pfl_lightning.algorithms.feddwa import nearness
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.scalar import ScalarClients

CONTRACT = [FedDWA(top_k=2, bn_buffers="local")]


def distances(models: list[float], guidance: list[float]) -> torch.Tensor:
    return torch.tensor([[(g - m) ** 2 for m in models] for g in guidance], dtype=torch.float64)


def test_weights_by_hand():
    """θ = (0, 2), θ' = (0.5, 1). Client 1: d² = 0.25 and 2.25, 1/d² = 4 and 4/9, so 0.9 and 0.1. Client 2: 1 and 1."""
    weights = nearness(distances([0, 2], [0.5, 1]), k=5)
    assert weights.tolist() == [pytest.approx([0.9, 0.1]), pytest.approx([0.5, 0.5])]
    assert (weights @ torch.tensor([0.0, 2.0]).double()).tolist() == pytest.approx([0.2, 1.0])


def test_only_the_nearest_are_mixed():
    """θ = (0, 2, 5), θ' = (0.5, 1.5, 4), two nearest: 0.9·0 + 0.1·2, 0.1·0 + 0.9·2, 0.2·2 + 0.8·5 (d² = 4 and 1)."""
    weights = nearness(distances([0, 2, 5], [0.5, 1.5, 4]), k=2)
    assert weights.tolist() == [
        pytest.approx([0.9, 0.1, 0]),
        pytest.approx([0.1, 0.9, 0]),
        pytest.approx([0, 0.2, 0.8]),
    ]
    assert (weights @ torch.tensor([0.0, 2.0, 5.0]).double()).tolist() == pytest.approx([0.2, 1.8, 4.4])


def test_equal_models_are_not_divided_by_zero():
    weights = nearness(distances([1, 1], [1, 1]), k=2)
    assert weights.tolist() == [pytest.approx([0.5, 0.5])] * 2


def plain_round(models: np.ndarray, targets: np.ndarray, k: int, guidance: int = 1) -> np.ndarray:
    """The personal models after a round with two local steps and some guidance steps of lr 0.1, in NumPy."""
    trained = targets + 0.81 * (models - targets)
    guided = targets + 0.9**guidance * (trained - targets)
    mixed = []
    for g in guided:
        q = 1 / (g - trained) ** 2
        q[np.argsort(-q)[k:]] = 0
        mixed.append(q @ trained / q.sum())
    return np.array(mixed)


def test_rounds_against_numpy_and_the_personal_model_is_tested():
    targets = np.array([4.0, -2.0, 1.0])
    run = ScalarClients(FedDWA(top_k=2, guidance_epochs=1), targets=targets.tolist(), sizes=[1, 3, 4], steps=2)
    personal = np.zeros(3)
    for _ in range(3):
        before = personal
        personal = plain_round(personal, targets, k=2)
        record = run.loop.round()
        assert record.per_client["rmse_before"] == pytest.approx(np.abs(before - targets), abs=1e-5)
        assert record.per_client["rmse_after"] == pytest.approx(
            0.81 * np.abs(before - targets), abs=1e-5
        )  # not the guidance
    assert run.client_values() == pytest.approx(personal.tolist(), abs=1e-5)


def test_the_guidance_has_as_many_epochs_as_local_training():
    targets = np.array([4.0, -2.0, 1.0])
    run = ScalarClients(FedDWA(top_k=2), targets=targets.tolist(), sizes=[1, 3, 4], steps=2)
    personal = np.zeros(3)
    for _ in range(3):
        personal = plain_round(personal, targets, k=2, guidance=2)
        run.loop.round()
    assert run.client_values() == pytest.approx(personal.tolist(), abs=1e-5)


def test_who_is_not_drawn_keeps_its_model_and_who_never_was_has_the_mean():
    run = ScalarClients(FedDWA(), targets=[4, -2], sizes=[1, 1], steps=2, participation=0.5)
    (drawn,) = run.rounds(1)
    values = run.client_values()
    assert values[drawn] == pytest.approx(0.19 * [4, -2][drawn], abs=1e-6)
    assert values[1 - drawn] == run.server_value
    while True:
        (now,) = run.rounds(1)
        if now != drawn:
            break
        values = run.client_values()
    assert run.client_values()[drawn] == values[drawn]


def test_a_single_client_trains_alone():
    runs = [ScalarClients(a, targets=[4], sizes=[2], steps=2) for a in (FedDWA(), Local())]
    for run in runs:
        run.rounds(3)
    assert runs[0].client_values() == pytest.approx(runs[1].client_values(), abs=1e-6)


def test_two_models_go_up_and_one_comes_down():
    run = ScalarClients(FedDWA(), targets=[1, 2, 3], sizes=[1, 1, 1], steps=1)
    run.rounds(1)
    assert (run.loop.history.up_bytes, run.loop.history.down_bytes) == (24, 12)


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match=r"top_k: 0 is not allowed; use a whole number >= 1"):
        FedDWA(top_k=0)
    with pytest.raises(ConfigError, match=r"guidance_epochs: -1 is not allowed; use a whole number >= 0"):
        FedDWA(guidance_epochs=-1)
