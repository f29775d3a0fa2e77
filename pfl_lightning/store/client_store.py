"""Client states between their visits, and on which rank each one lives."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from pfl_lightning.comm import Comm
from pfl_lightning.store.config import StoreConfig
from pfl_lightning.store.shelf import Section, Shelf, State
from pfl_lightning.transfer import to_host


class ClientStore:
    """The states this rank holds. A client that was never trained has none.

    `states` maps clients to states; they are in memory up to a bound and on disk beyond it, so they are read one at a
    time. `home` says for every client which rank holds its state (-1: nobody), `changed` who was trained since the last
    checkpoint; all ranks agree on both without asking, because all ranks know who trained whom.

    A round's new states are pending until it is `commit`ted, so that a round that is given up leaves no trace. (States
    may have moved for it: where a client lives changes no result.)
    """

    def __init__(self, num_clients: int, comm: Comm, config: StoreConfig | None = None) -> None:
        config = config or StoreConfig()
        self.shelf = Shelf(config.memory_bytes, config.folder)
        self.states = Section(self.shelf, "kept")
        self.pending = Section(self.shelf, "pending")
        self.home = [-1] * num_clients
        self.changed: set[int] = set()
        self.comm = comm
        self._newcomers: list[int] = []

    def settle(self, folder: Path) -> None:
        """Where states that memory has no room for go, unless the settings say where."""
        self.shelf.folder = self.shelf.folder or folder

    def get(self, client: int) -> State | None:
        """The state of a client that lives here, or None if it was never trained."""
        return self.pending.get(client) or self.states.get(client)

    def put(self, client: int, state: State) -> None:
        """Keep the state of a client after its visit."""
        self.pending[client] = state

    def remember(self, client: int, memory: State) -> None:
        """Add what the server returned to a client that was visited here in this round."""
        self.pending[client] = self.pending[client] | to_host(memory)

    def commit(self, cohort: Iterable[int]) -> None:
        """The round is whole: its states are the clients' states from now on."""
        self.states.take_all(self.pending)
        self._newcomers = []
        self.changed.update(cohort)

    def rollback(self) -> None:
        """The round is given up: forget its states."""
        self.pending.clear()
        for client in self._newcomers:
            self.home[client] = -1
        self._newcomers = []

    def begin_anew(self, home: Sequence[int]) -> None:
        """Forget everything; the states of the clients that live here are put into `states` next."""
        self.pending.clear()
        self.states.clear()
        self.home, self.changed, self._newcomers = list(home), set(), []

    def gather_for(self, shares: Sequence[Sequence[int]]) -> None:
        """Bring the states to the ranks that train these clients next: `shares[rank]` lists the clients of a rank."""
        target = {client: rank for rank, clients in enumerate(shares) for client in clients}
        moves = [(c, self.home[c], rank) for c, rank in target.items() if self.home[c] not in (-1, rank)]
        self.comm.move_states(self.states, moves)
        self._newcomers = [client for client in target if self.home[client] == -1]
        for client, rank in target.items():
            self.home[client] = rank

    def digest(self) -> str:
        """SHA-256 over all states in client order, the same on every rank and for any number of ranks."""
        hashes = torch.zeros(len(self.home), 4, dtype=torch.int64)
        for client, state in self.states.items():
            hashes[client] = torch.frombuffer(bytearray(hash_state(state)), dtype=torch.int64)
        return hashlib.sha256(self.comm.all_sum(hashes).numpy().tobytes()).hexdigest()


def hash_state(state: State) -> bytes:
    """SHA-256 of a state's names and bytes."""
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode() + b"\0" + state[name].cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.digest()
