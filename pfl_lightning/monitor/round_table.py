"""A CSV file that grows by some rows at a time. Its first column is the round."""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor

from pfl_lightning.foundation.atomic_files import flush, write_text
from pfl_lightning.foundation.errors import RunError

Row = Sequence[str]
SIZE_BYTES = 8
TEXT = "tensor"
"""The column that holds names. All others hold numbers, or nothing."""


class RoundTable:
    """A table of a run. Rows that belong together are written by one system call.

    Args:
        path: the file. It appears with the first rows.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def cut(self, last_round: int) -> None:
        """Drop the rows after a round, because these rounds are trained again. A row that nobody can read goes too."""
        with self._writing():
            if self.path.is_file():
                header, *rows = _read(self.path) or [["round"]]
                whole = (row for row in rows if _is_readable(row, header))
                write_text(self.path, csv_text([header, *(row for row in whole if int(row[0]) <= last_round)]))

    def append(self, header: Row, rows: Sequence[Row]) -> None:
        """Add rows. If the file has other columns, because another version wrote it, it gets these."""
        with self._writing():
            if self._header() == list(header):
                _append(self.path, csv_text(rows).encode())
            else:
                write_text(self.path, csv_text([header, *self._with_columns(header), *rows]))

    def replace(self, header: Row, rows: Sequence[Row]) -> None:
        """Write these rows instead of all earlier ones."""
        with self._writing():
            write_text(self.path, csv_text([header, *rows]))

    def flush(self) -> None:
        """Flush the rows to disk. If that fails, the next file written reports it."""
        with suppress(OSError):
            flush(self.path)

    def identity(self) -> Tensor:
        """Size and checksum of the file, for a checkpoint. # uint8 [40]"""
        content = self.path.read_bytes() if self.path.is_file() else b""
        return torch.tensor(list(_identity(content)), dtype=torch.uint8)

    def has_changed_since(self, identity: Tensor) -> bool:
        """Whether the rows that the file had at a checkpoint are damaged or missing. Rows that follow do not count."""
        saved = bytes(identity.tolist())
        size = int.from_bytes(saved[:SIZE_BYTES], "little")
        content = self.path.read_bytes()[:size] if self.path.is_file() else b""
        return _identity(content) != saved

    def _header(self) -> list[str] | None:
        if not self.path.is_file():
            return None
        with self.path.open(newline="") as file:
            return next(csv.reader(file), None)

    def _with_columns(self, header: Row) -> list[Row]:
        old, *rows = (_read(self.path) if self.path.is_file() else []) or [[]]
        return [[dict(zip(old, row, strict=True)).get(name, "") for name in header] for row in rows]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(f"cannot write {self.path}: {error.strerror or error}") from error


def _is_readable(row: Row, header: Row) -> bool:
    """Whether a row is complete and has numbers where they should be."""
    if len(row) != len(header) or not row[0].isdecimal():
        return False
    for name, cell in zip(header, row, strict=True):
        if cell and name != TEXT:
            try:
                float(cell)
            except ValueError:
                return False
    return True


def _identity(content: bytes) -> bytes:
    return len(content).to_bytes(SIZE_BYTES, "little") + hashlib.sha256(content).digest()


def csv_text(rows: Iterable[Row]) -> str:
    """Rows as the text of a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _read(path: Path) -> list[list[str]]:
    """All rows whose line has ended: half of the number 12 would be 1."""
    complete = path.read_text(errors="replace").rpartition("\n")[0]
    return list(csv.reader(complete.splitlines()))


def _append(path: Path, data: bytes) -> None:
    """Write all rows or none of them."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        size = os.fstat(handle).st_size
        if os.write(handle, data) != len(data):
            os.ftruncate(handle, size)
            raise OSError(0, "the disk is full")
    finally:
        os.close(handle)
