"""AdaptiveQuantile: FedOBP where each client finds out how much to keep, on held-out training samples. Ours."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning.algorithm import Server
from pfl_lightning.algorithms.fedobp import FedOBP
from pfl_lightning.algorithms.parts.validation import hold_out
from pfl_lightning.foundation.errors import require
from pfl_lightning.metrics import summaries as metrics
from pfl_lightning.model import masks
from pfl_lightning.model.client import ClientModule


@dataclass
class AdaptiveQuantile(FedOBP):
    """At each visit a client merges with every quantile in turn and takes the one whose model does best on its own
    validation samples, a part of its training data that it never trains on. Test data play no part. Beyond the paper,
    whose future work it names.
    """

    quantiles: list[float] = field(default_factory=lambda: [0.9, 0.99, 0.999, 0.9999, 1.0])
    """The quantiles that a client chooses from. Clients with too few samples to hold any out use `quantile`."""
    validation_share: float = 0.2
    """Share of a client's training samples held out for the choice."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = "one or more numbers from 0 to 1"
        require(bool(self.quantiles) and all(0 <= q <= 1 for q in self.quantiles), "quantiles", self.quantiles, allowed)
        share = self.validation_share
        require(0 < share < 1, "validation_share", share, "a number between 0 and 1")

    @override
    def setup(self, client: ClientModule, server: Server) -> None:
        hold_out(client, self.validation_share)  # the first scores must not see the held-out samples
        super().setup(client, server)

    @override
    def download(self, client: ClientModule, server: Server) -> None:
        hold_out(client, self.validation_share)  # from the first training on
        super().download(client, server)

    @override
    def merge(self, client: ClientModule, server: Server, score: Tensor) -> None:
        validation = hold_out(client, self.validation_share)
        choice = self.quantile
        if len(validation):
            choice = max(self.quantiles, key=lambda q: (*self._quality(client, server, score, q, validation), q))
        self._try(client, server, score, choice)
        client.memory["quantile"] = torch.tensor(choice, dtype=torch.float64)

    def _try(self, client: ClientModule, server: Server, score: Tensor, quantile: float) -> None:
        chosen = self.select(client, score, quantile)
        client.mask[: len(score)] = chosen
        masks.put(client.theta, chosen, client.memory["theta"])
        masks.merge(client.vector, client.mask, server.vector)

    def _quality(
        self, client: ClientModule, server: Server, score: Tensor, quantile: float, validation: Tensor
    ) -> list[float]:
        """The task's metrics on the validation samples, the main one first, signed so that more is better."""
        self._try(client, server, score, quantile)
        task = client.task
        values = metrics.per_client(task, client.test_on(validation)[None].cpu().numpy())
        return [float(values[name][0]) * (1 if better == "higher" else -1) for name, better in task.better.items()]
