"""Opening the run in a directory, and the models of its clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import ArgumentParser, Namespace
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from torch import nn

from pfl_lightning.checkpoint.read_only import find_checkpoint
from pfl_lightning.cli.explain import full_key
from pfl_lightning.cli.parser import build_parser, instantiate, parse
from pfl_lightning.export.saved_run import SavedRun
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.foundation.seeds import derive_seed
from pfl_lightning.foundation.torch_state import quiet_torch
from pfl_lightning.loop import FederatedFabricLoop


def load_client(run: str | Path, client: int | str, *, finetuned: bool = False, trust: bool = False) -> nn.Module:
    """The personal model of a client, ready to predict from raw inputs.

    Args:
        run: the directory of the run.
        client: the number of the client, or its name if the data set names its clients.
        finetuned: the copy fine-tuned for `loop.finetune_epochs`, instead of the model before local training.
        trust: whether to run code from outside of this package that the run's config names.

    Returns:
        A module in evaluation mode. Its inputs are rows of the data set as they are stored, for example bytes of images
        [N, H, W, C]. Its outputs are those of the run's own test.
    """
    saved = open_run(run, trust)
    with quiet_torch():
        return saved.predictor(saved.number_of(client), finetuned)


def open_run(run: str | Path, trust: bool = False) -> SavedRun:
    """Open a run at its last checkpoint, on the CPU and for reading only."""
    path = Path(run)
    if not path.is_dir():
        raise ConfigError(f"run: there is no directory {path}")
    manifest = find_checkpoint(path)
    parser = build_parser()
    settings = _settings(parser, path, trust)
    with quiet_torch():
        torch.manual_seed(derive_seed(settings.seed, "task"))  # as `pfl-fit` does, for layers made in a task's __init__
        parts = instantiate(parser, settings)
        try:
            parts["data"].setup(settings.seed)
        except ConfigError as error:
            raise ConfigError(full_key(str(error), "data", settings.data)) from error
        precision: Any = "32-true" if parts["fabric"].precision == "16-mixed" else parts["fabric"].precision
        alone = LightningEnvironment()  # even inside of a SLURM job
        fabric = Fabric(accelerator="cpu", devices=1, precision=precision, plugins=alone)
        config = replace(parts["loop"], clients_per_step=1, ranks_per_client=1, compile=None)
        loop = FederatedFabricLoop(fabric, parts["task"], parts["algorithm"], parts["data"], config, settings.seed)
        return SavedRun(path, loop, manifest, yaml.safe_load(manifest.config))


def _settings(parser: ArgumentParser, run: Path, trust: bool) -> Namespace:
    """The settings of the run, read as `pfl-fit --resume` reads them."""
    try:
        return parse(parser, ["--resume", str(run), *(["--trust"] if trust else [])])
    except ConfigError as error:
        raise ConfigError(f"run: {str(error).removeprefix('resume: ')}") from error
