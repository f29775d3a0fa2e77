"""A client's visit, from its state to its upload: open, download, test, fit, test, upload, save."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from pfl_lightning import masks
from pfl_lightning.algorithm import Algorithm, Server
from pfl_lightning.client import ClientModule
from pfl_lightning.exact_mean import Upload
from pfl_lightning.side_by_side import SideBySide
from pfl_lightning.stopwatch import Stopwatch
from pfl_lightning.store import ClientStore
from pfl_lightning.team import Team


class Visits:
    """Brings clients into the live models of a rank and through a round's steps.

    Args:
        algorithm: how clients cooperate.
        server: what they download from.
        store: where their states come from and go to.
        live: the live models of this rank.
        team: the ranks that train a client together.
        watch: told how long each step takes.
    """

    def __init__(
        self, algorithm: Algorithm, server: Server, store: ClientStore, live: SideBySide, team: Team, watch: Stopwatch
    ) -> None:
        self.algorithm, self.server, self.store = algorithm, server, store
        self.live, self.team, self.watch = live, team, watch

    def open(self, client: int, module: ClientModule | None = None) -> None:
        """Let a live model become this client: the first one by default."""
        module = module or self.live.clients[0]
        state = self.team.state(partial(self.store.get, client))
        module.open(client, self.server.round, state, self.server.initial)
        if not module.visits:
            self.algorithm.setup(module, self.server)

    def make(
        self, clients: Sequence[int], weights: Mapping[int, float], row_of: Mapping[int, Tensor]
    ) -> Iterator[Upload]:
        """Train clients when their uploads are asked for, and save their states.

        Args:
            clients: those of this rank.
            weights: each one's share of the round's total weight.
            row_of: where the facts of each one's visit are written.
        """
        for few in self.live.split(clients):
            yield from self._make(few, weights, row_of)

    def _make(
        self, clients: Sequence[int], weights: Mapping[int, float], row_of: Mapping[int, Tensor]
    ) -> Iterator[Upload]:
        """The visit of one client, or of several side by side."""
        modules, started = self.live.clients[: len(clients)], time.perf_counter()
        received = [
            self._receive(module, client, weights[client]) for module, client in zip(modules, clients, strict=True)
        ]
        with self.watch.phase("fit"):
            self.live.fit(modules, lambda module: self.algorithm.fit(module, self.server))
        for module, facts in zip(modules, received, strict=True):
            yield self._send(module, facts, row_of[module.id], started)

    def _receive(self, module: ClientModule, client: int, weight: float) -> tuple[list[float], list[int]]:
        """Bring a client to where its training starts; what is known of it then: sums of its test, bytes and mask."""
        algorithm, server, phase = self.algorithm, self.server, self.watch.phase
        with module.own_random():
            with phase("download"):
                self.open(client, module)
                module.weight = weight
                algorithm.download(module, server)
                personal = masks.count_by_layer(module.mask, module.layout)
                down = algorithm.down_bytes(module, server)
            with phase("test"):
                return algorithm.test(module, server).tolist(), [down, *personal]

    def _send(
        self, module: ClientModule, received: tuple[list[float], list[int]], row: Tensor, started: float
    ) -> Upload:
        """Test and save a client that was trained; what it uploads."""
        algorithm, server, phase = self.algorithm, self.server, self.watch.phase
        module.visits += 1
        with module.own_random():
            with phase("test"):
                after = algorithm.test(module, server).tolist()
            with phase("upload"):
                upload = algorithm.upload(module, server)
                facts = [module.loss_sum, module.samples_seen, algorithm.up_bytes(module, upload)]
                if self.team.leads:
                    before, known = received
                    self.store.put(module.id, module.state())
                    seconds = time.perf_counter() - started
                    row.copy_(torch.tensor([*before, *after, *facts, seconds, *known], dtype=torch.float64))
        return upload
