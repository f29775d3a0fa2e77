"""Client states between visits: the rank on which each one lives, and whether it is in RAM or on disk."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor
from typing_extensions import override

from pfl_lightning.comm.ranks import Comm
from pfl_lightning.foundation.errors import AlgorithmError, RunError
from pfl_lightning.foundation.state import State
from pfl_lightning.foundation.transfer import to_host
from pfl_lightning.model.client import MEMORY
from pfl_lightning.store.config import StoreConfig
from pfl_lightning.store.scratch_file import ScratchFile

Key = tuple[str, int]

OBJECT_BYTES = 1024
"""Approximate overhead of a tensor beside its values."""


class ClientStore:
    """The client states on this rank. A client never trained has none.

    `states` maps clients to states. They are in RAM up to a bound and on disk beyond it, so they are read one at a
    time. `home` is the rank of every client's state (-1: none), `changed` the clients trained since the last
    checkpoint. All ranks agree on both without communication, because all ranks know who trained whom.

    The new states of a round are pending until `commit`, so an abandoned round leaves no trace. (States may have
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
        """Add the server's reply to the state of a client visited on this rank. Others are skipped."""
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
        """Forget the states of an abandoned round."""
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


class TieredStore:
    """States under keys of a view's name and a client.

    A state is in RAM or on disk, never in both. Reading does not bring a state back to RAM: a client read for a
    visit is stored again after it, and an evaluation of all clients would only push out the latest ones.

    Args:
        ram_bytes: bytes that states may take in RAM.
        folder: the folder of the scratch file. None: the system's folder for temporary files.
    """

    def __init__(self, ram_bytes: int, folder: Path | None = None) -> None:
        self.ram_bytes, self.folder = ram_bytes, folder
        self.used = 0
        """Bytes in RAM now."""
        self._ram: dict[Key, tuple[State, int]] = {}
        self._disk: ScratchFile[Key] | None = None

    @property
    def on_disk(self) -> int:
        """Bytes of the scratch file."""
        return self._disk.size if self._disk else 0

    def put(self, key: Key, state: State) -> None:
        """Store a state. It replaces the state that the key had."""
        self.remove(key)
        size = sum(t.numel() * t.element_size() + OBJECT_BYTES for t in state.values())
        self._ram[key] = state, size
        self.used += size
        while self.used > self.ram_bytes:
            self._spill(next(iter(self._ram)))

    def get(self, key: Key) -> State:
        """The state of a key. It must have one."""
        if key in self._ram:
            return self._ram[key][0]
        assert self._disk is not None, "every key is in RAM or on disk"
        try:
            return load(self._disk.read(key))
        except OSError as error:
            raise self._failure("read", error) from error

    def remove(self, key: Key) -> None:
        """Forget the state of a key, if it has one."""
        if key in self._ram:
            self.used -= self._ram.pop(key)[1]
        elif self._disk is not None and key in self._disk:
            try:
                self._disk.remove(key)
            except OSError as error:
                raise self._failure("kept", error) from error

    def rename(self, old: Key, new: Key) -> None:
        """Move a state to another key. It replaces the state that the key had."""
        self.remove(new)
        if old in self._ram:
            self._ram[new] = self._ram.pop(old)
        elif self._disk is not None:
            self._disk.rename(old, new)

    def _spill(self, key: Key) -> None:
        state, size = self._ram[key]
        try:
            if self._disk is None:
                self._disk = ScratchFile(self.folder or Path(tempfile.gettempdir()))
            self._disk.write(key, save({name: t.contiguous() for name, t in state.items()}))
        except OSError as error:
            raise self._failure("kept", error) from error
        del self._ram[key]
        self.used -= size

    def _failure(self, verb: str, error: OSError) -> RunError:
        place = self.folder or tempfile.gettempdir()
        return RunError(f"client states cannot be {verb} in {place} (store.folder): {error.strerror or error}")


def hash_state(state: State) -> bytes:
    """SHA-256 of the names and bytes of a state. The prefix of the algorithm's entries does not count."""
    digest = hashlib.sha256()
    for name in sorted(state, key=lambda name: (name.removeprefix(MEMORY), name)):
        values = state[name].cpu().reshape(-1).view(torch.uint8).numpy()
        digest.update(name.removeprefix(MEMORY).encode() + b"\0" + values.tobytes())
    return digest.digest()
