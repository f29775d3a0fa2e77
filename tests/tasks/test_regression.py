"""Regression and forecasting: RMSE and MSE go the way accuracy goes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric

from pfl_lightning.algorithms import FedAvg
from pfl_lightning.data import DataSpec, Polynomial
from pfl_lightning.loop import FederatedFabricLoop, LoopConfig
from pfl_lightning.nets import LSTM, MLP, Powers
from pfl_lightning.tasks import Forecasting, Regression
from tests.helpers.ranks import run_on_ranks


def test_errors_by_hand():
    """Predictions 1 and 3 of targets 0 and 1: squares 1 + 4, loss 2.5, MSE 2.5; pooled with (7, 2): 12 / 4 = 3."""
    task = Regression(lambda spec: MLP(spec, ()))
    task.build(DataSpec((1,), 1))
    with torch.no_grad():
        task.net.head.weight.fill_(2.0)  # type: ignore[union-attr]
        task.net.head.bias.fill_(1.0)  # type: ignore[union-attr]
    batch = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [1.0]])
    assert task.training_step(batch).item() == 2.5
    assert task.test_step(batch).tolist() == [5.0, 2.0]
    both = task.metrics({"squares": np.array([5.0, 12.0]), "count": np.array([2.0, 4.0])})
    assert both["mse"].tolist() == [2.5, 3.0]
    assert both["rmse"] == pytest.approx([2.5**0.5, 3**0.5])


def run(fabric: Fabric) -> dict[str, object]:
    data = Polynomial(num_clients=4, points=80)
    data.setup(2)
    config = LoopConfig(rounds=2, participation=0.5, batch_size=8, eval_every=1)
    return FederatedFabricLoop(fabric, Regression(Powers), FedAvg(), data, config, 2).fit()


def test_the_loop_reports_it_and_ranks_agree():
    one, two = (run_on_ranks(run, world)[0] for world in (1, 2))
    for key in ("last", "best", "best_per_client_visits", "model_sha256"):
        assert one[key] == two[key]
    names = {"rmse_before", "rmse_after", "mse_after_worst10", "all_rmse_before", "all_global_mse", "rmse_after_pooled"}
    assert names <= set(one["last"])
    assert one["best"]["rmse_before"] == min(one["best"]["rmse_before"], one["last"]["rmse_before"])


def test_forecasting_has_the_papers_lstm():
    """Two layers of 12 on single values: 4·12·(1 + 12) + 96 and 4·12·24 + 96, head 13."""
    task = Forecasting()
    task.build(DataSpec((3,), 1))
    assert isinstance(task.net, LSTM)
    assert sum(p.numel() for p in task.net.parameters()) == 720 + 1248 + 13
    assert task(torch.zeros(5, 3)).shape == (5, 1)
