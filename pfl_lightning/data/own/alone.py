"""Files that one process writes while others wait for them."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of file systems that have no locks."""


@contextmanager
def new_folder(path: Path) -> Iterator[None]:
    """Make a folder for the block. After an error, folders that were made for it and are still empty are removed."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for folder in missing:
            try:
                folder.rmdir()
            except OSError:  # not empty: another process uses it
                break
        raise


@contextmanager
def writing_alone(path: Path, shared: bool) -> Iterator[tuple[Path, BinaryIO]]:
    """Give an empty file beside `path` to write to. It is removed at the end unless it was renamed.

    The kernel locks the unfinished file itself, so neither a crash nor an error leaves a lock behind. On file systems
    without locks, processes that start at the same time each write a file of their own.

    Args:
        path: the finished file, for the name.
        shared: whether other processes want the same file and wait.
    """
    aside = path.with_name(f".{path.name}.tmp")
    locked = _lock(aside) if shared else None
    if locked is None:
        aside = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    with locked or _open(aside) as file:
        try:
            file.truncate(0)
            yield aside, file
        finally:
            if _is_at(file, aside):
                aside.unlink()


def _lock(aside: Path) -> BinaryIO | None:
    """Open a file and lock it, after other processes are done with it. None if there are no locks here."""
    while True:
        file = _open(aside)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(file, aside):  # otherwise the process before us has renamed or removed it
                return file
        except BaseException as error:
            file.close()
            if isinstance(error, OSError) and error.errno in NO_LOCKS:
                aside.unlink(missing_ok=True)
                return None
            raise
        file.close()


def _open(path: Path) -> BinaryIO:
    # a link would lead to another file
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666), "r+b")


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Whether `path` still names the open file."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
