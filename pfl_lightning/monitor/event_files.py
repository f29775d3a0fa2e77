"""The TensorBoard files of a run, one for each process that worked on it, in an order that no clock decides."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pfl_lightning.foundation.atomic_files import replacing
from pfl_lightning.monitor.snapshot import EventFile

SUFFIX = ".pfl"
"""End of the names of our files, to tell them from those of other writers in the same directory."""
PATTERN = f"events.out.tfevents.*{SUFFIX}"

Rows = Sequence[tuple[int, Mapping[str, float]]]
"""For each round its number and its curves by tag."""


class GrowingFile:
    """The identity of a file that grows. Each part of it is read once."""

    def __init__(self, path: Path, first_round: int) -> None:
        self.path, self._first_round = path, first_round
        self._digest, self._size = hashlib.sha256(), 0

    def describe(self) -> EventFile:
        """The present state of the file."""
        with self.path.open("rb") as file:
            file.seek(self._size)
            new = file.read()
        self._digest.update(new)
        self._size += len(new)
        return EventFile(self._first_round, self._size, self._digest.hexdigest())


def restore_events(run_dir: Path, saved: Sequence[EventFile], rows: Rows) -> tuple[list[EventFile], list[str]]:
    """Restore the files of a checkpoint, named so that TensorBoard reads them in order.

    TensorBoard sorts files by name, and new files are named by the clock. Earlier files therefore get small numbers.
    Files that were started after the checkpoint are removed, because their rounds are trained again. A damaged file is
    set aside, and its curves are written again from metrics.csv.

    Args:
        run_dir: directory of the run.
        saved: the files at the checkpoint.
        rows: the curves of all rounds up to the checkpoint.

    Returns:
        The files as they are now, and the names of those that were damaged.
    """
    found: dict[int, Path] = {}
    rest = sorted(run_dir.glob(PATTERN))
    for number, file in enumerate(saved):
        path = next((path for path in rest if _begins_with(path, file)), None)
        if path is not None:
            found[number] = path
            rest.remove(path)
    damaged = [number for number in range(len(saved)) if number not in found]
    for path in rest:
        if damaged and path.stat().st_size > 0:
            path.rename(_free_name(run_dir))
        else:
            path.unlink()
    for number, path in found.items():
        with path.open("r+b") as open_file:
            open_file.truncate(saved[number].size)
        path.rename(_numbered(run_dir, number))
    files = list(saved)
    for number in damaged:
        files[number] = _rebuild(_numbered(run_dir, number), number, saved, rows)
    return files, [_numbered(run_dir, number).name for number in damaged]


def _begins_with(path: Path, file: EventFile) -> bool:
    """Whether a file still has the content of the checkpoint, with or without more behind it."""
    if not path.is_file() or path.is_symlink() or path.stat().st_size < file.size:
        return False
    with path.open("rb") as open_file:
        return hashlib.sha256(open_file.read(file.size)).hexdigest() == file.sha256


def _numbered(run_dir: Path, number: int) -> Path:
    return run_dir / PATTERN.replace("*", f"{number:010d}")


def _free_name(run_dir: Path) -> Path:
    """A name that TensorBoard does not read."""
    return next(p for n in range(1000) if not (p := run_dir / f"damaged_events_{n}").exists())


def _rebuild(path: Path, number: int, saved: Sequence[EventFile], rows: Rows) -> EventFile:
    """Write the curves of a damaged file's rounds again."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    first = saved[number].first_round
    end = saved[number + 1].first_round if number + 1 < len(saved) else math.inf
    with replacing(path) as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        for round_, curves in rows:
            if first <= round_ < end:
                values = [Summary.Value(tag=tag, simple_value=value) for tag, value in curves.items()]
                event = Event(wall_time=time.time(), step=round_, summary=Summary(value=values))
                writer.write(event.SerializeToString())
    return GrowingFile(path, first).describe()
