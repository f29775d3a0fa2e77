"""Algorithms with a mistake that a run must notice. The command finds them by `tests.helpers.mistaken.NAME`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from typing_extensions import override

from pfl_lightning.algorithm import ClientModule, Replies, Server, Uploads
from pfl_lightning.algorithms import FedAvg


@dataclass
class IgnoresUploads(FedAvg):
    """Clients upload their models, and nobody averages them."""

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        super().fit(client, server)
        Path(f"trained-{client.id}").touch()

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies | None:
        return None


@dataclass
class LooksAtItsOwnClients(FedAvg):
    """The server of a rank follows the clients of that rank."""

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies | None:
        super().aggregate(server, uploads)
        if server.round == 2:
            server.vector[0] = sum(uploads.local)
        return None


@dataclass
class KeepsOnSelf(FedAvg):
    """A value that belongs into a memory is kept on the algorithm."""

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        super().fit(client, server)
        self.last = client.id


@dataclass
class AveragesTwice(FedAvg):
    """The mean is asked for twice."""

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies | None:
        super().aggregate(server, uploads)
        return super().aggregate(server, uploads)


@dataclass
class AveragesAnotherName(FedAvg):
    """Clients upload `vector`, and the server asks for `model`."""

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies | None:
        uploads.mean({"model": torch.zeros_like(server.vector)})
        return None
