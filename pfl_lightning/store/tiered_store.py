"""States in RAM up to a bound. The states stored longest ago go to disk."""

from __future__ import annotations

import tempfile
from pathlib import Path

from safetensors.torch import load, save

from pfl_lightning.foundation.errors import RunError
from pfl_lightning.foundation.state import State
from pfl_lightning.store.scratch_file import ScratchFile

Key = tuple[str, int]

OBJECT_BYTES = 1024
"""Approximate overhead of a tensor beside its values."""


class TieredStore:
    """States under keys of a view's name and a client.

    A state is in RAM or on disk, never in both. Reading does not bring a state back to RAM: a client that is read for a
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
        """The state of a key that has one."""
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
