"""Predictions of a client's own model on its test samples."""

from __future__ import annotations

import numpy as np
import torch

from pfl_lightning.export.saved_run import SavedRun
from pfl_lightning.report.forecasts import Forecast


@torch.no_grad()
def forecast_client(run: SavedRun, client: int) -> Forecast | None:
    """Truth and prediction of the first target on the client's test samples. None if it has none."""
    data = run.loop.data
    indices = data.test_indices(client)
    if not len(indices):
        return None
    raw, truth = data.samples.x[indices].cpu(), data.samples.y[indices].cpu()
    predicted = run.predictor(client)(raw)
    inputs = raw.flatten(1)
    name = data.client_names[client] if data.client_names else str(client)
    only = inputs[:, 0].double().numpy() if inputs.shape[1] == 1 else np.zeros(0)
    columns = (column.reshape(len(indices), -1)[:, 0].double().numpy() for column in (truth, predicted))
    return Forecast(name, only, *columns)
