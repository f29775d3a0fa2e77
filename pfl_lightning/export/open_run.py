"""A run whose clients can be loaded: the one in memory, or a saved one."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pfl_lightning.engine.evaluation import finetune
from pfl_lightning.engine.visit import load_client
from pfl_lightning.export.inputs import input_module
from pfl_lightning.export.predictor import Predictor, client_model, detached_copy, model_of
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.foundation.state import State
from pfl_lightning.loop import FederatedFabricLoop
from pfl_lightning.model.client import ClientModule


class OpenRun:
    """The server and the clients of a run, which is the one in memory unless a subclass says otherwise.

    Args:
        loop: the run. It has one rank.
    """

    def __init__(self, loop: FederatedFabricLoop) -> None:
        self.loop = loop

    @property
    def place(self) -> str:
        """Where the run is, for error messages."""
        return "this run"

    @property
    def live(self) -> ClientModule:
        """The live model that clients are loaded into."""
        return self.loop.engine.client

    def number_of(self, client: int | str) -> int:
        """The number of a client named by number or, if the data set names its clients, by name."""
        names, count = self.loop.data.client_names, self.loop.data.num_clients
        if str(client) in names:
            return names.index(str(client))
        number = int(client) if str(client).isdecimal() else -1
        if not 0 <= number < count:
            named = f", or a name such as {names[0]}" if names else ""
            raise ConfigError(f"client: {client} is not in {self.place}; use a number from 0 to {count - 1}{named}")
        return number

    def state_of(self, client: int) -> State | None:
        """The state of a client. None if it was never trained."""
        return self.loop.store.get(client)

    def load(self, client: int, finetuned: bool = False) -> ClientModule:
        """Load a client into the live model and personalize it, as an evaluation does."""
        loop = self.loop
        load_client(self.live, client, self.state_of(client), loop.algorithm, loop.server)
        loop.algorithm.personalize(self.live, loop.server)
        if finetuned:
            if not loop.config.finetune_epochs:
                raise ConfigError("finetuned: the run has loop.finetune_epochs 0, so it has no fine-tuned models")
            finetune(self.live, loop.algorithm, loop.server, loop.config.finetune_epochs)
        return self.live

    def load_global(self) -> ClientModule:
        """Load the global model into the live model."""
        self.live.load_state(0, self.loop.server.round, None, self.loop.server.vector)
        return self.live

    def predictor(self, client: int, finetuned: bool = False) -> Predictor:
        """The model of a client, for raw inputs."""
        self.load(client, finetuned)
        return self.live_predictor()

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
        """The task's metrics for the sums of one test. NaN if a sum is not finite, empty if nothing was tested."""
        row = np.asarray(sums, dtype=np.float64)
        if np.isnan(row).all() or not row.any():
            return {}
        if not np.isfinite(row).all():
            row = np.full_like(row, np.nan)
        values = self.live.task.metrics(dict(zip(self.live.task.sums, row[:, None], strict=True)))
        return {name: float(value[0]) for name, value in values.items()}
