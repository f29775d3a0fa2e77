"""Toy runs that are saved to a directory and opened again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.checkpoint import CheckpointConfig, Checkpoints
from pfl_lightning.checkpoint.read_only import find_checkpoint
from pfl_lightning.export.saved_run import SavedRun
from pfl_lightning.loop import FederatedFabricLoop
from tests.helpers.toy import toy_loop

SETTINGS = {"rounds": 3, "participation": 0.6, "eval_every": 1, "finetune_epochs": 1}


def new_loop(algorithm: Algorithm, **config: Any) -> FederatedFabricLoop:
    return toy_loop(Fabric(accelerator="cpu", devices=1), algorithm, **{**SETTINGS, **config})


def save_toy_run(run_dir: Path, algorithm: Algorithm, **config: Any) -> FederatedFabricLoop:
    """Train a toy run and save its last round."""
    loop = new_loop(algorithm, **config)
    checkpoints = Checkpoints(run_dir, loop, CheckpointConfig())
    loop.fit([checkpoints])
    checkpoints.finish()
    return loop


def open_toy_run(run_dir: Path, algorithm: Algorithm, **config: Any) -> SavedRun:
    """Open what `save_toy_run` saved."""
    return SavedRun(run_dir, new_loop(algorithm, **config), find_checkpoint(run_dir), {"seed": 1})


def assert_near(found: Tensor, evaluated: Tensor) -> None:
    """Tests of the global model share batches, so an evaluation rounds the loss differently. Counts are the same."""
    assert torch.equal(found[[0, 2]], evaluated[[0, 2]])
    torch.testing.assert_close(found, evaluated, rtol=1e-5, atol=0.0)
