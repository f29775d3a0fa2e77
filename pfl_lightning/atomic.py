"""Files that are there completely or not at all: written aside, flushed, renamed."""

from __future__ import annotations

import errno
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
        share(aside)
        flush(aside)
        os.replace(aside, path)
        flush(path.parent)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a small text file; raises an `OSError`."""
    with replacing(path) as aside:
        aside.write_text(text)


def make_folder(path: Path) -> None:
    """Make a folder and those above it where they are missing, to last through a power failure as their files do."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        flush(path.parent)


def share(path: Path) -> None:
    """Give a file the permissions that new files usually get: safetensors makes its own for their owner alone."""
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)


def flush(path: Path) -> None:
    """Make what was written to a file, or the names in a folder, last through a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network disks cannot do it with a folder
            raise
    finally:
        os.close(handle)
