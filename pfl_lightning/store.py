"""Client states between their visits, and on which rank each one lives."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pfl_lightning.comm import Comm

State = dict[str, Tensor]


class ClientStore:
    """The states this rank holds. A client that was never trained has none.

    `home` says for every client which rank holds its state (-1: nobody), `changed` who was trained since the last
    checkpoint; all ranks agree on both without asking, because all ranks know who trained whom.

    A round's new states are pending until it is `commit`ted, so that a round that is given up leaves no trace. (States
    may have moved for it: where a client lives changes no result.)
    """

    def __init__(self, num_clients: int, comm: Comm) -> None:
        self.states: dict[int, State] = {}
        self.pending: dict[int, State] = {}
        self.home = [-1] * num_clients
        self.changed: set[int] = set()
        self.comm = comm
        self._newcomers: list[int] = []

    def get(self, client: int) -> State | None:
        """The state of a client that lives here, or None if it was never trained."""
        return self.pending.get(client, self.states.get(client))

    def put(self, client: int, state: State) -> None:
        """Keep the state of a client after its visit."""
        self.pending[client] = state

    def remember(self, client: int, memory: State) -> None:
        """Add what the server returned to a client that was visited here in this round."""
        self.pending[client] |= {name: tensor.detach().clone().cpu() for name, tensor in memory.items()}

    def commit(self, cohort: Iterable[int]) -> None:
        """The round is whole: its states are the clients' states from now on."""
        self.states |= self.pending
        self.pending, self._newcomers = {}, []
        self.changed.update(cohort)

    def rollback(self) -> None:
        """The round is given up: forget its states."""
        self.pending = {}
        for client in self._newcomers:
            self.home[client] = -1
        self._newcomers = []

    def gather_for(self, shares: Sequence[Sequence[int]]) -> None:
        """Bring the states to the ranks that train these clients next: `shares[rank]` lists the clients of a rank."""
        target = {client: rank for rank, clients in enumerate(shares) for client in clients}
        moves = [(c, self.home[c], rank) for c, rank in target.items() if self.home[c] not in (-1, rank)]
        self.states.update(self.comm.move_states(self.states, moves))
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
