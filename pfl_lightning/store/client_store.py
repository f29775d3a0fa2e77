"""Client states between visits, and the rank on which each one lives."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning.comm.collectives import Comm
from pfl_lightning.foundation.errors import AlgorithmError
from pfl_lightning.foundation.state import State
from pfl_lightning.model.client import MEMORY
from pfl_lightning.model.transfer import to_host
from pfl_lightning.store.config import StoreConfig
from pfl_lightning.store.tiered_store import TieredStore


class ClientStore:
    """The client states on this rank. A client that was never trained has none.

    `states` maps clients to states. They are in RAM up to a bound and on disk beyond it, so they are read one at a
    time. `home` is the rank of every client's state (-1: none), `changed` the clients trained since the last
    checkpoint. All ranks agree on both without communication, because all ranks know who trained whom.

    The new states of a round are pending until `commit`, so a round that is given up leaves no trace. (States may have
    migrated for it. The place of a state changes no result.)
    """

    def __init__(self, num_clients: int, comm: Comm, config: StoreConfig | None = None) -> None:
        config = config or StoreConfig()
        self.tiers = TieredStore(config.memory_bytes, config.folder)
        self.states = View(self.tiers, "kept")
        self.pending = View(self.tiers, "pending")
        self.home = [-1] * num_clients
        self.changed: set[int] = set()
        self.comm = comm
        self._newcomers: list[int] = []

    def set_folder(self, folder: Path) -> None:
        """Set the folder for states that RAM has no room for, unless the settings name one."""
        self.tiers.folder = self.tiers.folder or folder

    def get(self, client: int) -> State | None:
        """The state of a client that lives here, or None if it was never trained."""
        view = self.pending if client in self.pending else self.states
        return view.get(client)

    def put(self, client: int, state: State) -> None:
        """Store the state of a client after its visit."""
        self.pending[client] = state

    def reply(self, client: int, memory: Mapping[str, Tensor], personal: Tensor | None) -> None:
        """Add the server's reply to the state of a client that was visited on this rank. Others are passed over."""
        if client in self.pending:
            news = {MEMORY + name: tensor for name, tensor in memory.items()}
            if personal is not None:
                held = self.pending[client].get("personal")
                if held is None or held.shape != personal.shape:
                    found = f"{0 if held is None else len(held)} personal values"
                    problem = f"the reply to client {client} has {personal.numel()}, but the client has {found}"
                    raise AlgorithmError(f"aggregate: {problem}")
                news["personal"] = personal
            self.pending[client] = self.pending[client] | to_host(news)

    def commit(self, cohort: Iterable[int]) -> None:
        """Accept the states of a complete round."""
        self.states.take_all(self.pending)
        self._newcomers = []
        self.changed.update(cohort)

    def rollback(self) -> None:
        """Forget the states of a round that is given up."""
        self.pending.clear()
        for client in self._newcomers:
            self.home[client] = -1
        self._newcomers = []

    def reset(self, home: Sequence[int]) -> None:
        """Forget everything. The caller puts the states of the clients that live here into `states` next."""
        self.pending.clear()
        self.states.clear()
        self.home, self.changed, self._newcomers = list(home), set(), []

    def migrate(self, owner: Mapping[int, int]) -> None:
        """Bring the states to the ranks that train these clients next. `owner` is client to rank."""
        moves = [(c, self.home[c], rank) for c, rank in owner.items() if self.home[c] not in (-1, rank)]
        if moves:
            self.comm.move_states(self.states, moves)
        self._newcomers = [client for client in owner if self.home[client] == -1]
        for client, rank in owner.items():
            self.home[client] = rank

    def digest(self) -> str:
        """SHA-256 over all states in client order, the same on every rank and for any number of ranks."""
        hashes = torch.zeros(len(self.home), 4, dtype=torch.int64)
        for client, state in self.states.items():
            hashes[client] = torch.frombuffer(bytearray(hash_state(state)), dtype=torch.int64)
        return hashlib.sha256(self.comm.all_sum(hashes).numpy().tobytes()).hexdigest()


class View(MutableMapping[int, State]):
    """The states under one name of a tiered store, by client. `[client]` may be a copy: read it, do not change it."""

    def __init__(self, store: TieredStore, name: str) -> None:
        self._store, self._name = store, name
        self._clients: dict[int, None] = {}

    @override
    def __getitem__(self, client: int) -> State:
        if client not in self._clients:
            raise KeyError(client)
        return self._store.get((self._name, client))

    @override
    def __setitem__(self, client: int, state: State) -> None:
        self._clients[client] = None
        self._store.put((self._name, client), state)

    @override
    def __delitem__(self, client: int) -> None:
        del self._clients[client]
        self._store.remove((self._name, client))

    @override
    def __contains__(self, client: object) -> bool:
        return client in self._clients

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    @override
    def __len__(self) -> int:
        return len(self._clients)

    @override
    def clear(self) -> None:
        for client in self._clients:
            self._store.remove((self._name, client))
        self._clients = {}

    def take_all(self, other: View) -> None:
        """Move all states of another view of the same store here, without copying a byte."""
        for client in other._clients:
            self._store.rename((other._name, client), (self._name, client))
        self._clients |= other._clients
        other._clients = {}


def hash_state(state: State) -> bytes:
    """SHA-256 of the names and bytes of a state. The prefix of the algorithm's entries does not count."""
    digest = hashlib.sha256()
    for name in sorted(state, key=lambda name: (name.removeprefix(MEMORY), name)):
        values = state[name].cpu().reshape(-1).view(torch.uint8).numpy()
        digest.update(name.removeprefix(MEMORY).encode() + b"\0" + values.tobytes())
    return digest.digest()
