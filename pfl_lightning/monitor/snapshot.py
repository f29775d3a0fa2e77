"""The state of a run's result files at the moment of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class EventFile(NamedTuple):
    """A TensorBoard file at a checkpoint. It may have grown since."""

    first_round: int
    size: int
    sha256: str


class Snapshot(NamedTuple):
    """The result files at a checkpoint. By default there are none."""

    rows: bytes = b""
    """The content of metrics.csv."""
    events: Sequence[EventFile] = ()
    """The TensorBoard files, oldest first."""


NO_FILES = Snapshot()
