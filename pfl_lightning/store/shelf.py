"""States in memory up to a bound, those that were put there longest ago on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from safetensors.torch import load, save
from torch import Tensor
from typing_extensions import override

from pfl_lightning.errors import RunError
from pfl_lightning.store.scratch_file import ScratchFile

State = dict[str, Tensor]
Key = tuple[str, int]

OBJECT_BYTES = 1024
"""What a tensor takes besides its values, about."""


class Shelf:
    """Where states wait, under keys of a section's name and a client.

    A state is in memory or on disk, never in both. Reading brings nothing back to memory: whoever is read for a visit
    is put anew after it, and an evaluation of all clients would only drive out those that were put last.

    Args:
        memory: bytes that states may take in memory.
        folder: where the file goes once one is needed; None: the system's place for such files.
    """

    def __init__(self, memory: int, folder: Path | None = None) -> None:
        self.memory, self.folder = memory, folder
        self.used = 0
        """Bytes in memory now."""
        self._near: dict[Key, tuple[State, int]] = {}
        self._far: ScratchFile[Key] | None = None

    @property
    def on_disk(self) -> int:
        """Bytes of the file."""
        return self._far.size if self._far else 0

    def put(self, key: Key, state: State) -> None:
        """Keep a state in place of the one that the key had."""
        self.remove(key)
        size = sum(t.numel() * t.element_size() + OBJECT_BYTES for t in state.values())
        self._near[key] = state, size
        self.used += size
        while self.used > self.memory:
            self._send_away(next(iter(self._near)))

    def get(self, key: Key) -> State:
        """The state of a key that has one."""
        if key in self._near:
            return self._near[key][0]
        assert self._far is not None, "every key is in memory or on disk"
        try:
            return load(self._far.read(key))
        except OSError as error:
            raise self._failure("read", error) from error

    def remove(self, key: Key) -> None:
        """Forget the state of a key, if it has one."""
        if key in self._near:
            self.used -= self._near.pop(key)[1]
        elif self._far is not None and key in self._far:
            try:
                self._far.remove(key)
            except OSError as error:
                raise self._failure("kept", error) from error

    def rename(self, old: Key, new: Key) -> None:
        """Let a state take the place of another's."""
        self.remove(new)
        if old in self._near:
            self._near[new] = self._near.pop(old)
        elif self._far is not None:
            self._far.rename(old, new)

    def _send_away(self, key: Key) -> None:
        state, size = self._near[key]
        try:
            if self._far is None:
                self._far = ScratchFile(self.folder or Path(tempfile.gettempdir()))
            self._far.write(key, save({name: t.contiguous() for name, t in state.items()}))
        except OSError as error:
            raise self._failure("kept", error) from error
        del self._near[key]
        self.used -= size

    def _failure(self, verb: str, error: OSError) -> RunError:
        place = self.folder or tempfile.gettempdir()
        return RunError(f"client states cannot be {verb} in {place} (store.folder): {error.strerror or error}")


class Section(MutableMapping[int, State]):
    """The states under one name of a shelf, by client. What `[client]` returns is to be read, not changed: it may be
    a copy.
    """

    def __init__(self, shelf: Shelf, name: str) -> None:
        self._shelf, self._name = shelf, name
        self._clients: dict[int, None] = {}

    @override
    def __getitem__(self, client: int) -> State:
        if client not in self._clients:
            raise KeyError(client)
        return self._shelf.get((self._name, client))

    @override
    def __setitem__(self, client: int, state: State) -> None:
        self._clients[client] = None
        self._shelf.put((self._name, client), state)

    @override
    def __delitem__(self, client: int) -> None:
        del self._clients[client]
        self._shelf.remove((self._name, client))

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
            self._shelf.remove((self._name, client))
        self._clients = {}

    def take_all(self, other: Section) -> None:
        """Let all states of another section of the shelf become this one's, without moving a byte."""
        for client in other._clients:
            self._shelf.rename((other._name, client), (self._name, client))
        self._clients |= other._clients
        other._clients = {}
