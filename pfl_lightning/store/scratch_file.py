"""Bytes under keys, in one file without a name: when its process ends, however that happens, it is gone."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Hashable
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)


class _Place(NamedTuple):
    start: int
    size: int


class ScratchFile(Generic[Key]):
    """Records are appended. Removed records are reclaimed once they are more than half of the file.

    So the file is never larger than twice its records, and a record is moved a few times at most. Errors are
    `OSError`s, as the system says them.

    Args:
        folder: the disk that it is on.
    """

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 (it lives as long as this)
        self._places: dict[Key, _Place] = {}
        self._live = 0
        self.size = 0
        """Bytes of the file."""

    def __contains__(self, key: Key) -> bool:
        return key in self._places

    def write(self, key: Key, record: bytes) -> None:
        """Add a record under a new key."""
        assert key not in self._places, "a record is removed before it is written again"
        self._put(record, self.size)
        self._places[key] = _Place(self.size, len(record))
        self.size += len(record)
        self._live += len(record)

    def read(self, key: Key) -> bytes:
        """The record of a key."""
        start, size = self._places[key]
        parts = []
        while size:
            part = os.pread(self._file.fileno(), size, start)
            if not part:
                raise OSError(0, "the file is shorter than it was")
            parts.append(part)
            start, size = start + len(part), size - len(part)
        return b"".join(parts)

    def remove(self, key: Key) -> None:
        """Drop the record of a key."""
        self._live -= self._places.pop(key).size
        if 2 * self._live < self.size:
            self._compact()

    def rename(self, old: Key, new: Key) -> None:
        """Let a record have another key."""
        self._places[new] = self._places.pop(old)

    def _compact(self) -> None:
        """Move the records together, in their order: each goes to a place free by then."""
        end = 0
        for key, (start, size) in sorted(self._places.items(), key=lambda item: item[1].start):
            if start > end:
                self._put(self.read(key), end)
                self._places[key] = _Place(end, size)
            end += size
        os.ftruncate(self._file.fileno(), end)
        self.size = end

    def _put(self, record: bytes, start: int) -> None:
        rest = memoryview(record)
        while rest:  # a system may write less than it was given
            done = os.pwrite(self._file.fileno(), rest, start)
            rest, start = rest[done:], start + done
