"""The history of a run: which metrics appear under which names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import pytest
from lightning.fabric import Fabric

from pfl_lightning.algorithms import FedAvg
from pfl_lightning.loop import FederatedFabricLoop, LoopConfig
from pfl_lightning.metrics.keys import MetricKey, all_keys
from pfl_lightning.metrics.record import Metric
from pfl_lightning.tasks import Classification
from tests.helpers.toy import ToyData, ToyNet

NAMES = ("top1_acc", "error_before", "all_global")


class OddNames(Classification):
    """Metrics whose names hold underscores, digits and the words of column names."""

    better: ClassVar[Mapping[str, str]] = {"top1_acc": "higher", "error_before": "lower", "all_global": "lower"}

    def metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        accuracy = sums["correct"] / sums["count"]
        return {"top1_acc": accuracy, "error_before": 1 - accuracy, "all_global": sums["loss"] / sums["count"]}


@pytest.fixture(scope="module")
def loop() -> FederatedFabricLoop:
    data = ToyData()
    data.setup(1)
    config = LoopConfig(rounds=3, batch_size=8, eval_every=2, finetune_epochs=1, participation=0.6)
    return FederatedFabricLoop(Fabric(accelerator="cpu", devices=1), OddNames(ToyNet), FedAvg(), data, config)


def test_a_metric_with_any_name_is_in_last_best_and_best_per_client(loop):
    records = [loop.round().scalars for _ in range(3)]
    summary = loop.summary()
    for name, better in OddNames.better.items():
        columns = [
            f"{name}_before",
            f"{name}_after_pooled",
            f"all_{name}_before",
            f"all_global_{name}",
            f"all_{name}_finetuned_worst10",
        ]
        for column in columns:
            values = [record[column] for record in records if column in record]
            assert summary["last"][column] == values[-1], column
            assert summary["best"][column] == (max if better == "higher" else min)(values), column
        assert f"{name}_after" in summary["best_per_client_visits"]
        assert f"{name}_finetuned" in summary["best_per_client_evaluations"]
    assert summary["last"]["error_before_before"] == pytest.approx(1 - summary["last"]["top1_acc_before"])
    assert {key for key in summary["last"] if "top1_acc" in key} <= set(loop.history.columns())


@pytest.mark.parametrize("name", NAMES)
def test_columns_are_read_back_as_they_were_written(name):
    """Also when the name of another metric begins or ends like a column."""
    keys = all_keys(NAMES)
    assert len(keys) == len(NAMES) * 5 * 3 * 3
    assert keys[MetricKey(name, "finetuned", "all", "worst10").column] == (name, "finetuned", "all", "worst10")
    metric = Metric(name)
    assert metric.split(f"all_{name}_before_pooled") == ("all", "before_pooled")
    assert metric.split(f"all_global_{name}") == ("all", "global")
    assert metric.split(f"{name}_seconds") is None
