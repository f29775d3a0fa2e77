"""A run opened for reading: its server and clients as they were at its last checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file
from typing_extensions import override

from pfl_lightning.checkpoint import contents
from pfl_lightning.checkpoint.manifest import Manifest
from pfl_lightning.export.open_run import OpenRun
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.foundation.state import State
from pfl_lightning.loop import FederatedFabricLoop


class SavedRun(OpenRun):
    """A run at its last checkpoint. Nothing in its directory is changed.

    Args:
        path: the run directory.
        loop: made from the run's config, and not started. It becomes the run at its checkpoint, without client states.
        manifest: of the checkpoint.
        config: the run's resolved config.
    """

    def __init__(self, path: Path, loop: FederatedFabricLoop, manifest: Manifest, config: dict[str, Any]) -> None:
        super().__init__(loop)
        self.path, self.manifest, self.config = path, manifest, config
        self._check()
        self._latest_after = _restore_server(loop, manifest, path / "checkpoints")

    @property
    @override
    def place(self) -> str:
        return str(self.path)

    @property
    def round(self) -> int:
        """The round of the checkpoint."""
        return self.manifest.round

    @override
    def state_of(self, client: int) -> State | None:
        if self.manifest.clients[client] < 0:
            return None
        return next(state for _, state in contents.read_clients(self.manifest, self.path / "checkpoints", [client]))

    def after_training(self, client: int) -> dict[str, float]:
        """The client's test after its latest local training. Empty if it was never trained."""
        return self.values(self._latest_after[client])

    def _check(self) -> None:
        manifest, loop = self.manifest, self.loop
        if manifest.layout != loop.server.layout.fingerprint() or len(manifest.clients) != loop.data.num_clients:
            raise ConfigError(f"run: the checkpoint in {self.path} belongs to another model than its config")
        if manifest.data != contents.data_fingerprint(loop.data):
            raise ConfigError(f"data: the samples or their clients differ from those of the run in {self.path}")


def _restore_server(loop: FederatedFabricLoop, manifest: Manifest, folder: Path) -> np.ndarray:
    """Restore the server. Returns the sums of each client's latest test after training."""
    server = loop.server
    tensors = load_file(folder / manifest.server.name)
    server.vector.copy_(tensors["vector"])
    server.initial.copy_(tensors["initial"])
    server.memory = {name.removeprefix("memory/"): t for name, t in tensors.items() if name.startswith("memory/")}
    server.round = manifest.round
    return tensors["history/latest_after"].numpy()
