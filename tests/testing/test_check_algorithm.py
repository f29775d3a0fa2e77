"""The contract for a user's own method: it passes, or one line says what is broken."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from pfl_lightning.algorithms import FedAvg
from pfl_lightning.testing import CHECKS, ContractError, check_algorithm, contract


@dataclass
class Halved(FedAvg):
    """Each client keeps half of its step."""

    def fit(self, client, server):
        start = client.theta.clone()
        super().fit(client, server)
        client.theta.copy_((start + client.theta) / 2)


@dataclass
class Leaking(FedAvg):
    """Its evaluation trains."""

    def personalize(self, client, server):
        super().personalize(client, server)
        server.vector.add_(0.01)


@dataclass
class Deaf(FedAvg):
    """It ignores the seed."""

    def fit(self, client, server):
        client.theta.zero_()

    def init_server(self, client, server):
        server.vector.zero_()

    def download(self, client, server):
        client.vector.zero_()


class NoDataclass(FedAvg):
    """It has settings of its own that nobody sees."""

    def __init__(self):
        super().__init__()
        self.step = torch.tensor(1.0)


def test_a_good_method_passes():
    check_algorithm(Halved)
    assert len(CHECKS) == 9


@pytest.mark.parametrize(
    ("method", "check", "message"),
    [
        (
            Leaking(),
            contract.evaluation_changes_nothing,
            "Leaking trains other models if clients are evaluated: model_s",
        ),
        (Deaf(), contract.the_seed_matters, "Deaf gives the same models for every seed"),
        (NoDataclass(), contract.settings_stay, "NoDataclass sets attributes on itself"),
    ],
)
def test_a_broken_method_gets_one_line(method, check, message):
    with pytest.raises(ContractError, match=message):
        check(method)
