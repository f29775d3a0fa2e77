"""FLOCO+: FLOCO plus a personal model pulled towards the global one. Grinwald et al., NeurIPS 2024."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from typing_extensions import override

from pfl_lightning.algorithm import Server
from pfl_lightning.algorithms.ditto import Ditto
from pfl_lightning.algorithms.floco import Floco, region
from pfl_lightning.model.client import ClientModule


@dataclass
class FlocoPlus(Floco, Ditto):
    """Floco's global model and Ditto's own one, both a simplex, trained and (the own one) tested in the same region."""

    @override
    def received(self, client: ClientModule, server: Server) -> torch.Tensor:
        return torch.where(region(client.layout).to(client.mask.device), client.vector, server.vector)
