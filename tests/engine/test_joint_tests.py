"""Clients that train together are tested together, each with its own model and samples (`loop.clients_per_step`)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor

from pfl_lightning.algorithms import FedPer, KNNPer
from pfl_lightning.engine.joint_tests import JointTests
from pfl_lightning.foundation.errors import DivergedError
from pfl_lightning.model.client import ClientModule
from pfl_lightning.tasks import Classification
from tests.helpers.toy import PlainNet, toy_loop


def make_loop(algorithm: Any, **config: Any) -> Any:
    fabric = Fabric(accelerator="cpu", devices=1)
    return toy_loop(fabric, algorithm, net=PlainNet, **{"rounds": 1, "eval_every": 0, "clients_per_step": 4, **config})


@pytest.mark.parametrize("batch", [1024, 8, 2])
def test_the_sums_are_those_of_each_client_alone(batch):
    """Unequal clients, one without samples; in one batch, in batches of two samples of each client, and of one."""
    loop = make_loop(FedPer(), test_batch_size=batch)
    clients = loop.engine.clients
    noise = torch.Generator().manual_seed(0)
    for client in clients:
        client.vector.copy_(torch.randn(len(client.vector), generator=noise))
    parts = [torch.arange(0, 5), torch.empty(0, dtype=torch.int64), torch.arange(7, 10), torch.tensor([3])]
    found = loop.engine.tests.run(parts)
    alone = torch.stack([client.test_on(part) for client, part in zip(clients, parts, strict=True)])
    torch.testing.assert_close(found, alone, rtol=1e-6, atol=1e-6)
    assert found[:, -1].tolist() == [5, 0, 3, 1]


def test_clients_without_test_samples_are_no_error():
    loop = make_loop(FedPer())
    assert not loop.engine.tests.run([torch.empty(0, dtype=torch.int64)] * 3).any()


def seen_in(loop: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[int]]:
    """A round's tests: how many clients at a time, and the clients that were tested alone."""
    together, alone = list[int](), list[int]()
    run, test_on = JointTests.run, ClientModule.test_on

    def counted(tests: JointTests, parts: Any) -> Tensor:
        together.append(len(parts))
        return run(tests, parts)

    def counted_alone(client: ClientModule, indices: Tensor) -> Tensor:
        alone.append(client.id)
        return test_on(client, indices)

    monkeypatch.setattr(JointTests, "run", counted)
    monkeypatch.setattr(ClientModule, "test_on", counted_alone)
    loop.round()
    return together, alone


def test_a_group_is_tested_at_once_before_and_after_training(monkeypatch):
    assert seen_in(make_loop(FedPer()), monkeypatch) == ([4, 4, 3, 3], [])


def test_a_round_without_tests_tests_nobody(monkeypatch):
    assert seen_in(make_loop(FedPer(), test_every=2, rounds=2), monkeypatch) == ([], [])


def test_a_test_of_the_methods_own_is_made_client_by_client(monkeypatch):
    together, _ = seen_in(make_loop(KNNPer()), monkeypatch)
    assert not together


def test_sums_that_are_no_sums_of_samples_are_taken_client_by_client(monkeypatch):
    monkeypatch.setattr(Classification, "sample_sums", lambda task, batch: 0 / 0)
    together, alone = seen_in(make_loop(FedPer()), monkeypatch)
    assert not together
    assert sorted(alone) == sorted(2 * list(range(7)))


def test_the_trial_leaves_the_models_as_they_were():
    loop = make_loop(FedPer())
    vectors = loop.engine.vectors.clone()
    assert JointTests(loop.engine.clients, loop.engine.vectors).possible
    assert torch.equal(loop.engine.vectors, vectors)


def test_a_method_that_fails_on_a_diverged_client_names_it():
    class Picky(FedPer):
        def fit(self, client: Any, server: Any) -> None:
            client.vector.fill_(torch.nan)
            raise ValueError("no such number")

    with pytest.raises(DivergedError, match=r"client \d.*diverged in round 1: .*no such number"):
        make_loop(Picky()).round()
