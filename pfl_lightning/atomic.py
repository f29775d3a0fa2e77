"""Files that are there completely or not at all: written aside, flushed, renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write the file to the path that is given inside the block; it takes the place of `path` at its end.

    It is flushed to the disk before and its new name after, so that it lasts through a power failure. On an error
    nothing is left of it.
    """
    aside = path.with_name(f".{path.name}.tmp")  # always the same name: one that a kill left is overwritten
    try:
        yield aside
        _flush(aside)
        os.replace(aside, path)
        _flush(path.parent)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a small text file; raises an `OSError`."""
    with replacing(path) as aside:
        aside.write_text(text)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
