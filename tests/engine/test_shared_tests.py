"""Clients share batches when they are tested with the global model, and get the sums that they would get alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.optim import Adam

from pfl_lightning.algorithm import Algorithm, Server
from pfl_lightning.algorithms import FedAvg, FedBN, FedOBP, FedPer
from pfl_lightning.data.federated import DataSpec
from pfl_lightning.engine import evaluation
from pfl_lightning.engine.shared_tests import can_share, group_clients
from pfl_lightning.loop import FederatedFabricLoop
from pfl_lightning.model.client import ClientModule
from pfl_lightning.nets import Net
from pfl_lightning.tasks import Classification, Regression
from tests.helpers.toy import ToyNet, fingerprint, toy_loop, toy_summary


class KeepsEntries(FedAvg):
    """Makes entries personal in `fit`, where nothing that a client starts with tells of it."""

    def fit(self, client: ClientModule, server: Server) -> None:
        super().fit(client, server)
        client.mask[:40] = True


def trained(algorithm: Algorithm, **settings: Any) -> FederatedFabricLoop:
    config = {"rounds": 2, "participation": 0.6, "eval_every": 0, **settings}
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), algorithm, **config)
    loop.fit()
    return loop


@pytest.mark.parametrize("finetune_epochs", [0, 1])
@pytest.mark.parametrize("algorithm", [FedAvg(), FedPer(), FedBN(), FedOBP(quantile=0.5), KeepsEntries()])
def test_shared_batches_give_the_sums_of_single_clients(algorithm, finetune_epochs, monkeypatch):
    loop = trained(algorithm, finetune_epochs=finetune_epochs)
    shared = loop.evaluate()
    monkeypatch.setattr(evaluation, "can_share", lambda *_: False)
    alone = loop.evaluate()
    assert torch.equal(shared[:, :, [0, 2]], alone[:, :, [0, 2]])
    torch.testing.assert_close(shared, alone, rtol=1e-6, atol=0.0)
    assert (alone[:, 0, 1] != alone[:, 2, 1]).any() == (type(algorithm) is not FedAvg)


def test_a_client_with_the_global_model_is_not_loaded(monkeypatch):
    loop, loaded = trained(FedAvg()), []
    monkeypatch.setattr(evaluation, "load_client", lambda client, number, *_: loaded.append(number))
    loop.evaluate()
    assert loaded == []


def test_the_groups_depend_on_the_samples_alone():
    client = trained(FedAvg(), test_batch_size=12).engine.client
    groups = [range(7)[rows] for rows in group_clients(client, range(7))]
    assert groups == [range(0, 2), range(2, 4), range(4, 6), range(6, 7)]
    client.data.test_sizes = torch.tensor([0, 0, 30, 12, 1, 0, 11])
    groups = [range(7)[rows] for rows in group_clients(client, range(7))]
    assert groups == [range(0, 2), range(2, 3), range(3, 4), range(4, 7)]


def test_groups_on_several_ranks_give_the_same_bits():
    settings: dict[str, Any] = {"test_batch_size": 12, "participation": 0.6}
    for algorithm in (FedAvg(), FedOBP(quantile=0.5)):
        one, three = (toy_summary(world, algorithm, **settings) for world in (1, 3))
        assert fingerprint(one) == fingerprint(three)


class MixesSamples(Net):
    """Normalises by the statistics of the batch, in tests too."""

    def __init__(self, spec: DataSpec) -> None:
        norm = nn.BatchNorm1d(8, track_running_stats=False)
        super().__init__(nn.Sequential(nn.Linear(6, 8), norm), nn.Linear(8, spec.num_classes))


def test_samples_that_would_mix_do_not_share_a_batch():
    for net, answer in ((ToyNet, True), (MixesSamples, False)):
        loop = trained(FedAvg(), net=net)
        assert can_share(loop.engine.client, loop.server.initial) == answer


class OwnTest(Classification):
    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int = 0) -> Tensor:
        return 2 * super().test_step(batch, batch_idx)


def test_a_test_of_a_subclass_is_not_replaced():
    assert Classification(ToyNet).has_sample_sums
    assert not OwnTest(ToyNet).has_sample_sums


def test_regression_counts_every_number():
    task = Regression(lambda spec: nn.Linear(3, 2), lambda p: Adam(p))
    task.build(DataSpec((3,), 2))
    batch = torch.randn(5, 3), torch.randn(5, 2)
    with torch.no_grad():
        torch.testing.assert_close(task.sample_sums(batch).sum(0), task.test_step(batch))


def test_a_value_that_is_not_finite_stays_with_its_client():
    loop = trained(FedAvg())
    loop.data.samples.x[loop.data.test_indices(2)[0]] = torch.nan
    finite = loop.evaluate()[:, 2].isfinite().all(1)
    assert finite.tolist() == [True, True, False, True, True, True, True]
