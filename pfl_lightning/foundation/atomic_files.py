"""Files that appear complete or not at all: written under a temporary name, flushed to disk, renamed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the place of `path` at the end of the block.

    The content is flushed to disk before the rename and the directory after it, so the file survives a power failure.
    After an error the old file is unchanged and nothing is left of the new one. After a kill the temporary file stays
    under the name that `temporary_path` gives, and the next write of `path` replaces it.
    """
    temporary = temporary_path(path)
    temporary.unlink(missing_ok=True)
    # O_EXCL never opens an existing file and never follows a link. The permissions follow the umask.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        flush(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def temporary_path(path: Path) -> Path:
    """The name under which `replacing` writes a file."""
    return path.with_name(f".{path.name}.tmp")


def write_bytes(path: Path, content: bytes) -> None:
    """Write a small file. Raises an `OSError`."""
    with replacing(path) as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    """Write a small text file in UTF-8. Raises an `OSError`."""
    write_bytes(path, text.encode())


def make_folder(path: Path) -> None:
    """Create a directory and its missing parents, and flush each new name to disk."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        flush(path.parent)


def flush(path: Path) -> None:
    """Flush a file, or the names in a directory, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot flush a directory
            raise
    finally:
        os.close(handle)
