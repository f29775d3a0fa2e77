"""A run opened for reading: its server and clients as they were at its last checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from pfl_lightning.checkpoint import contents
from pfl_lightning.checkpoint.manifest import Manifest
from pfl_lightning.engine.sequential import load_client
from pfl_lightning.export.inputs import input_module
from pfl_lightning.export.predictor import Predictor, client_model, detached_copy, model_of
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.foundation.state import State
from pfl_lightning.loop import FederatedFabricLoop
from pfl_lightning.model.client import ClientModule


class SavedRun:
    """A run at its last checkpoint. Nothing in its directory is changed.

    Args:
        path: the run directory.
        loop: made from the run's config, and not started. It becomes the run at its checkpoint, without client states.
        manifest: of the checkpoint.
        config: the run's resolved config.
    """

    def __init__(self, path: Path, loop: FederatedFabricLoop, manifest: Manifest, config: dict[str, Any]) -> None:
        self.path, self.loop, self.manifest, self.config = path, loop, manifest, config
        self._check()
        self._latest_after = _restore_server(loop, manifest, path / "checkpoints")

    @property
    def live(self) -> ClientModule:
        """The live model that clients are loaded into."""
        return self.loop.engine.client

    @property
    def round(self) -> int:
        """The round of the checkpoint."""
        return self.manifest.round

    def number_of(self, client: int | str) -> int:
        """The number of a client that is named by number or, if the data set names its clients, by name."""
        names, count = self.loop.data.client_names, self.loop.data.num_clients
        if str(client) in names:
            return names.index(str(client))
        number = int(client) if str(client).isdecimal() else -1
        if not 0 <= number < count:
            named = f", or a name such as {names[0]}" if names else ""
            raise ConfigError(f"client: {client} is not in {self.path}; use a number from 0 to {count - 1}{named}")
        return number

    def state_of(self, client: int) -> State | None:
        """The state of a client; None if it was never trained."""
        if self.manifest.clients[client] < 0:
            return None
        return next(state for _, state in contents.read_clients(self.manifest, self.path / "checkpoints", [client]))

    def load(self, client: int, finetuned: bool = False) -> ClientModule:
        """Load a client into the live model and personalize it, as an evaluation does."""
        loop = self.loop
        load_client(self.live, client, self.state_of(client), loop.algorithm, loop.server)
        loop.algorithm.personalize(self.live, loop.server)
        if finetuned:
            loop.algorithm.finetune(self.live, loop.server, loop.config.finetune_epochs)
        return self.live

    def load_global(self) -> ClientModule:
        """Load the global model into the live model."""
        self.live.load_state(0, self.loop.server.round, None, self.loop.server.vector)
        return self.live

    def predictor(self, client: int, finetuned: bool = False) -> Predictor:
        """The model of a client, for raw inputs."""
        self.load(client, finetuned)
        return self.live_predictor(finetuned)

    def live_predictor(self, plain: bool = False) -> Predictor:
        """The live model as it is now, for raw inputs.

        Args:
            plain: the net alone, even if the method adds something to its predictions.
        """
        model = detached_copy(model_of(self.live.task)) if plain else client_model(self.live, self.loop.algorithm)
        return Predictor(self.inputs(), model).eval()

    def inputs(self) -> torch.nn.Module:
        """The module that normalises raw inputs."""
        return input_module(self.loop.data, self.loop.config.channels_last)

    def values(self, sums: Tensor | np.ndarray) -> dict[str, float]:
        """The task's metrics for the sums of one test; NaN if a sum is not finite, empty if nothing was tested."""
        row = np.asarray(sums, dtype=np.float64)
        if np.isnan(row).all() or not row.any():
            return {}
        if not np.isfinite(row).all():
            row = np.full_like(row, np.nan)
        values = self.live.task.metrics(dict(zip(self.live.task.sums, row[:, None], strict=True)))
        return {name: float(value[0]) for name, value in values.items()}

    def after_training(self, client: int) -> dict[str, float]:
        """The client's test after its latest local training; empty if it was never trained."""
        return self.values(self._latest_after[client])

    def _check(self) -> None:
        manifest, loop = self.manifest, self.loop
        if manifest.layout != loop.server.layout.fingerprint() or len(manifest.clients) != loop.data.num_clients:
            raise ConfigError(f"run: the checkpoint in {self.path} belongs to another model than its config")
        if manifest.data != contents.data_fingerprint(loop.data):
            raise ConfigError(f"data: the samples or their clients differ from those of the run in {self.path}")


def _restore_server(loop: FederatedFabricLoop, manifest: Manifest, folder: Path) -> np.ndarray:
    """Make the server what it was. Returns the sums of each client's latest test after training."""
    server = loop.server
    tensors = load_file(folder / manifest.server.name)
    server.vector.copy_(tensors["vector"])
    server.initial.copy_(tensors["initial"])
    server.memory = {name.removeprefix("memory/"): t for name, t in tensors.items() if name.startswith("memory/")}
    server.round = manifest.round
    return tensors["history/latest_after"].numpy()
