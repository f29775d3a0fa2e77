"""Values that a module logs while it trains become columns of the round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn import functional as F

from pfl_lightning.algorithms import Ditto, FedAvg
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.lit_runs import lit_loop
from tests.helpers.ranks import run_on_ranks
from tests.helpers.toy import ToyData
from tests.tasks.lit_modules import LitClassifier

BATCHES: list[tuple[float, int]] = []
"""Correct predictions and samples of each training batch."""


class LitLogging(LitClassifier):
    """Logs numbers and a metric in training, and keeps what it logs."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        right = (logits.argmax(1) == y).float().mean()
        self.train_acc(logits, y)
        self.log("train_acc", self.train_acc)
        self.log_dict({"train/right": right, "train_loss": 3 * loss, "mean": right.item()}, on_step=True)
        if batch_idx:
            self.log("late", right)
        BATCHES.append((float(right) * len(y), len(y)))
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Nothing."""

    def on_train_epoch_end(self) -> None:
        self.log("train_epoch", self.current_epoch)


class LitPlain(LitClassifier):
    """No hooks, no dropout and no BatchNorm: its clients can train in lockstep."""

    on_train_batch_end = LitClassifier.__base__.on_train_batch_end

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes)
        self.backbone = nn.Linear(in_features, 8)


def trained(fabric: Fabric, module: Any, algorithm: Any, **config: Any) -> dict[str, float]:
    """The training columns of one round."""
    loop = lit_loop(fabric, module, algorithm, ToyData(), **config)
    BATCHES.clear()
    scalars = loop.round().scalars
    columns = [name for name in loop.history.columns() if name.startswith("train_")]
    return {name: scalars[name] for name in columns}


def test_values_count_with_their_samples_over_all_epochs():
    values = trained(Fabric(accelerator="cpu", devices=1), LitLogging, FedAvg())
    right, samples = np.array(BATCHES).sum(axis=0)
    assert list(values) == ["train_loss", "train_acc", "train_right", "train_mean", "train_epoch"]
    for column in ("train_acc", "train_right", "train_mean"):
        assert values[column] == pytest.approx(right / samples, abs=1e-6)
    assert values["train_epoch"] == 0.5, "of the epochs 0 and 1"


def test_values_are_equal_on_two_ranks():
    def work(fabric: Fabric) -> dict[str, float]:
        return trained(fabric, LitLogging, Ditto())

    (one,) = run_on_ranks(work, 1)
    for other in run_on_ranks(work, 2):
        assert other == pytest.approx(one, rel=1e-12)


class LitCounting(LitPlain):
    """Counts its steps without a hook."""

    steps = 0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.steps += 1
        return super().training_step(batch, batch_idx) * (1 + 0.01 * self.steps)


def test_attributes_of_one_client_are_refused_where_several_train_at_once():
    line = "clients_per_step: must be 1, because several LitCounting cannot .*: its training step sets steps, "
    with pytest.raises(ConfigError, match=line):
        trained(Fabric(accelerator="cpu", devices=1), LitCounting, FedAvg(), clients_per_step=2)


def test_there_are_no_columns_where_a_step_does_not_see_one_client():
    fabric = Fabric(accelerator="cpu", devices=1)
    assert [*trained(fabric, LitPlain, FedAvg())] == ["train_loss", "train_acc"]
    assert [*trained(fabric, LitPlain, FedAvg(), clients_per_step=2)] == ["train_loss"]
