"""Modules in Lightning's own style under every method of the contract: they run, or one line refuses them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from lightning import LightningModule
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.algorithms import FedALA, FedAvg, FedPer
from pfl_lightning.data import IID, Fashion10k
from pfl_lightning.loop import FederatedFabricLoop, LoopConfig
from pfl_lightning.nets import CNN
from pfl_lightning.tasks import Classification
from tests.algorithms.test_contract import ALGORITHMS, name
from tests.helpers.lit_runs import ToyNumbers, lit_loop, lit_summaries
from tests.helpers.toy import ToyData
from tests.tasks.lit_modules import LitClassifier, LitCollection, LitRegressor

METHODS: dict[str, Algorithm] = {
    **{type(a).__name__: a for a in sorted(ALGORITHMS, key=lambda a: len(name(a)), reverse=True)},
    "FedPer": FedPer(),
    "FedALA": FedALA(max_epochs=2),
}
"""The plainest one of each exported method. Settings that name layers of the toy net are left out."""
SEVERAL_RANKS = ("FedAvg", "FedOBP", "FedPer", "Ditto")
MODULES: dict[type[LightningModule], type[ToyData]] = {
    LitClassifier: ToyData,
    LitCollection: ToyData,
    LitRegressor: ToyNumbers,
}
CLASSES_ONLY = ("FedPAC", "Floco", "FlocoPlus", "FLUTE", "KNNPer", "PFedFDA", "PFedSD", "PFedSOP")
REFUSED: dict[type[LightningModule], dict[str, str]] = {
    LitClassifier: {
        "PFedSOP": "task.optimizer: pFedSOP needs SGD without momentum and without a scheduler",
    },
    LitCollection: {
        "FedBN": "task.net: FedBN needs a net with BatchNorm layers",
        "PFedSOP": "task.optimizer: pFedSOP needs SGD without momentum and without a scheduler",
    },
    LitRegressor: {
        "FedBN": "task.net: FedBN needs a net with BatchNorm layers",
        **dict.fromkeys(CLASSES_ONLY, ""),
    },
}
"""The beginning of the line with which a method refuses a module."""
each_module = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)


def summaries(world: int, module: type[LightningModule], methods: Any) -> dict[str, Any]:
    return lit_summaries(world, module, {m: partial(METHODS.__getitem__, m) for m in methods}, MODULES[module])


@each_module
def test_every_method_trains_it_or_refuses_it_with_one_line(module):
    results = summaries(1, module, METHODS)
    refused = {method: result for method, result in results.items() if isinstance(result, str)}
    assert refused.keys() == REFUSED[module].keys()
    for method, line in refused.items():
        assert line.startswith(REFUSED[module][method])
        assert "\n" not in line
    trained = [result for result in results.values() if not isinstance(result, str)]
    assert all(result["rounds"] == 2 for result in trained)
    assert len({result["clients_sha256"] for result in trained}) > len(trained) // 2, "methods differ"


@each_module
def test_hashes_are_equal_on_1_2_and_3_ranks(module):
    one = summaries(1, module, SEVERAL_RANKS)
    for world in (2, 3):
        assert summaries(world, module, SEVERAL_RANKS) == one
    assert all("model_sha256" in result for result in one.values())


class LitShared(LitClassifier):
    """Keeps its state in the class, as happens when a list is defined outside of __init__."""

    losses: list[float] = []  # noqa: RUF012
    steps = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx) * (1 + 0.01 * len(self.losses) + 0.01 * self.steps)
        self.losses.append(float(loss.detach()))
        type(self).steps += 1
        return loss


def test_values_in_the_class_do_not_pass_to_the_next_client():
    methods = {"FedAvg": FedAvg}
    one = lit_summaries(1, LitShared, methods, ToyData)
    assert lit_summaries(2, LitShared, methods, ToyData) == one
    LitShared.losses, LitShared.steps = [], 0


class Noting(LitClassifier):
    """Needs its own training step in every batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": super().training_step(batch, batch_idx), "samples": len(batch[1])}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert outputs["samples"] == len(batch[1])


@pytest.mark.parametrize("method", ["FedPAC", "FLUTE", "PFedFDA", "PFedSD"])
def test_methods_with_a_loss_of_their_own_add_it_to_the_users_loss(method):
    run = lit_loop(Fabric(accelerator="cpu", devices=1), Noting, METHODS[method], ToyData(), rounds=2, participation=1)
    assert run.fit()["rounds"] == 2


class PlainCNN(LightningModule):
    """`Classification` with `CNN`, as somebody who knows only Lightning would write it."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.hidden = nn.Linear(1024, 512)
        self.output = nn.Linear(512, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        for conv in (self.conv1, self.conv2):
            x = torch.relu(torch.max_pool2d(conv(x), 2))
        return self.output(torch.relu(self.hidden(x.flatten(1))))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def test_step(self, batch: Any, batch_idx: int) -> None:
        logits = self(batch[0])
        self.log("test_acc", (logits.argmax(1) == batch[1]).float().mean())
        self.log("test_loss", cross_entropy(logits, batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def test_our_classification_as_a_plain_module_has_the_same_hash():
    results = []
    for task in (Classification(CNN), PlainCNN):
        data = Fashion10k(num_clients=100, partition=IID())
        data.setup(3)
        config = LoopConfig(rounds=2, participation=0.02, batch_size=25, eval_every=0)
        results.append(FederatedFabricLoop(Fabric(accelerator="cpu", devices=1), task, FedAvg(), data, config, 3).fit())
    ours, plain = results
    assert plain["model_sha256"] == ours["model_sha256"]
    assert plain["clients_sha256"] == ours["clients_sha256"]
    for column in ("acc_before", "acc_after", "acc_after_pooled"):
        assert plain["last"][column] == pytest.approx(ours["last"][column], abs=1e-7)
