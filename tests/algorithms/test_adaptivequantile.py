"""AdaptiveQuantile: what it chooses, and on which samples."""

from __future__ import annotations

import pytest
import torch
from lightning.fabric import Fabric

from pfl_lightning.algorithms import AdaptiveQuantile
from pfl_lightning.algorithms.parts import scores
from pfl_lightning.algorithms.parts.validation import hold_out
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.model.client import ClientModule
from tests.algorithms.test_fedobp import model_of
from tests.helpers.scalar import ScalarClients
from tests.helpers.toy import TRAIN_SIZES, toy_loop
from tests.helpers.visits import memory_of, open_client

CONTRACT = [AdaptiveQuantile(quantiles=[0.3, 0.8, 1.0], validation_share=0.3)]


def chosen(own: list[float], received: list[float], quantiles: list[float]) -> tuple[list[float], float]:
    """The client's target is (4, 0, 1); its loss is ½‖x − a‖²."""
    run = ScalarClients(AdaptiveQuantile(quantiles=quantiles), [[4.0, 0.0, 1.0]], sizes=[5], steps=1)
    run.rounds(1)
    run.loop.store.states[0]["memory/theta"] = torch.tensor(own)
    run.loop.server.vector.copy_(torch.tensor(received))
    model = model_of(run, 0).tolist()
    return model, float(run.loop.engine.client.memory["quantile"])


def test_the_quantile_that_validates_best_by_hand():
    """Own (4, 3, 1.5) against received (0, 1, 1): scores (16, 4, 0.25), the target is (4, 0, 1).

    q = 1 → (0, 1, 1): squares 17; q = 0.5 → (4, 1, 1): 1, the best; q = 0 → (4, 3, 1): 9.
    """
    model, quantile = chosen([4.0, 3.0, 1.5], [0.0, 1.0, 1.0], [0.0, 0.5, 1.0])
    assert quantile == 0.5
    assert model == [4.0, 1.0, 1.0]


def test_of_equal_quantiles_the_greatest_wins():
    """Own (4, 0, 1) is perfect in every entry that it may keep; received too."""
    assert chosen([4.0, 0.0, 1.0], [4.0, 0.0, 1.0], [0.0, 1.0, 0.5])[1] == 1.0


def test_validation_samples_are_training_samples_that_are_never_trained_on():
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), AdaptiveQuantile(validation_share=0.3), local_epochs=1)
    trained: dict[int, set[int]] = {}
    original = loop.data.batch

    def batch(indices: torch.Tensor, device: torch.device, augment_seed: int | None = None):
        if torch.is_grad_enabled():
            trained.setdefault(loop.engine.client.id, set()).update(indices.tolist())
        return original(indices, device)

    loop.data.batch = batch  # type: ignore[method-assign]
    loop.fit()
    for client, size in enumerate(TRAIN_SIZES):
        open_client(loop, client)
        held_out = set(hold_out(loop.engine.client, 0.3).tolist())
        assert len(held_out) == int(0.3 * size)
        assert held_out == set(hold_out(loop.engine.client, 0.3).tolist())
        assert held_out | trained[client] == set(loop.data.train_indices(client).tolist())
        assert not held_out & trained[client]


def test_no_score_sees_a_held_out_sample_not_even_the_first(monkeypatch):
    """With `first_visit: initial` a client has scores before it is trained for the first time."""
    seen: list[tuple[int, int]] = []

    def fisher(client: ClientModule) -> torch.Tensor:
        seen.append((client.id, client.num_samples))
        return torch.ones_like(client.theta)

    monkeypatch.setitem(scores.OF_MODEL, "fisher", fisher)
    method = AdaptiveQuantile(score="fisher", first_visit="initial", validation_share=0.3)
    toy_loop(Fabric(accelerator="cpu", devices=1), method, rounds=1, eval_every=0).fit()
    rest = {(client, size - int(0.3 * size)) for client, size in enumerate(TRAIN_SIZES)}
    assert len(seen) == 2 * len(TRAIN_SIZES), "once before the first training and once after it"
    assert set(seen) == rest


def test_the_choice_does_not_depend_on_test_data():
    digests = []
    for scramble in (False, True):
        loop = toy_loop(Fabric(accelerator="cpu", devices=1), AdaptiveQuantile(quantiles=[0.3, 0.8, 1.0]), rounds=4)
        if scramble:
            for client in range(7):
                loop.data.samples.x[loop.data.test_indices(client)] = 99.0
        loop.fit()
        digests.append((loop.model_sha256(), loop.store.digest()))
    assert digests[0] == digests[1]


def test_a_client_with_too_few_samples_takes_the_fixed_quantile():
    """0.2 of 4 samples is none."""
    run = ScalarClients(AdaptiveQuantile(quantile=0.5), [[4.0, 2.0]], sizes=[4], steps=1)
    run.rounds(2)
    assert float(memory_of(run.loop, 0)["quantile"]) == 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quantiles": []}, r"quantiles: \[\] is not allowed; use one or more numbers from 0 to 1"),
        ({"quantiles": [0.5, 2]}, r"quantiles: \[0.5, 2\] is not allowed; use one or more numbers from 0 to 1"),
        ({"validation_share": 0.0}, r"validation_share: 0.0 is not allowed; use a number between 0 and 1"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        AdaptiveQuantile(**settings)
