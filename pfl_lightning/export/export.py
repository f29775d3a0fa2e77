"""The models that a user asks for, written one after the other."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from pfl_lightning.export.card import Card
from pfl_lightning.export.model_files import write_model
from pfl_lightning.export.saved_run import SavedRun
from pfl_lightning.foundation.errors import ConfigError

MOST_CHECKED = 1024
"""Samples on which an ONNX file is checked."""


def export_client(run: SavedRun, client: int, folder: Path, onnx: bool = False, finetuned: bool = False) -> list[Path]:
    """Write the personal model of a client. Returns the files."""
    data, moment = run.loop.data, "finetuned" if finetuned else "before"
    predictor = run.predictor(client, finetuned)
    tested = run.loop.algorithm.test(run.live, run.loop.server)
    about: Card = {
        "model": f"personal model of client {client}" + ", fine-tuned" * finetuned,
        "client": client,
        "name": data.client_names[client] if data.client_names else None,
        "visits": run.live.visits,
        "train_samples": int(data.train_sizes[client]),
        "test_samples": int(data.test_sizes[client]),
        "label_counts": data.label_counts()[client].tolist() if data.kind == "classes" else None,
        "results": {
            **{f"{name}_{moment}": value for name, value in run.values(tested).items()},
            **{f"{name}_after": value for name, value in run.after_training(client).items()},
        },
    }
    name = f"client_{client:0{len(str(data.num_clients - 1))}d}" + "_finetuned" * finetuned
    return write_model(run, predictor, about, some_inputs(run, client) if onnx else None, folder, name)


def export_global(run: SavedRun, folder: Path, onnx: bool = False) -> list[Path]:
    """Write the plain global model, tested by all clients. Returns the files."""
    data, live = run.loop.data, run.load_global()
    sums = torch.zeros(len(live.task.sums), dtype=torch.float64)
    for client in range(data.num_clients):
        sums += live.test_on(data.test_indices(client)).cpu()
    results = {f"global_{name}_pooled": value for name, value in run.values(sums).items()}
    about: Card = {"model": "global model", "client": None, "name": None, "results": results}
    about["test_samples"] = int(data.test_sizes.sum())
    samples = some_inputs(run, int(data.test_sizes.argmax())) if onnx else None
    return write_model(run, run.live_predictor(plain=True), about, samples, folder, "global")


def best_client(run: SavedRun) -> int:
    """The client whose personal model does best in its test, by the first metric of the task."""
    task, found = run.live.task, (-math.inf, -1)
    metric, better = next(iter(task.better.items()))
    for client in range(run.loop.data.num_clients):
        value = run.values(run.loop.algorithm.test(run.load(client), run.loop.server)).get(metric, math.nan)
        sign = 1.0 if better == "higher" else -1.0
        if sign * value > found[0]:
            found = sign * value, client
    if found[1] < 0:
        raise ConfigError("best: no client has test samples, so none can be called best; use --client")
    return found[1]


def some_inputs(run: SavedRun, client: int) -> Tensor:
    """Raw test inputs of a client, or training inputs if it has no test samples."""
    data = run.loop.data
    indices = data.test_indices(client) if int(data.test_sizes[client]) else data.train_indices(client)
    if not len(indices):
        raise ConfigError(f"onnx: client {client} has no samples to check the file on")
    return data.samples.x[indices[:MOST_CHECKED]].cpu()
