"""The places for checkpoints. Checkpoints in different slots share no file, so one damaged file breaks one of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pfl_lightning.checkpoint.files import PartFile
from pfl_lightning.checkpoint.manifest import Manifest, manifest_path


@dataclass(eq=False)
class Slot:
    """One checkpoint, brought up to date in its turn by writing the clients outdated in it."""

    clients: list[int]
    """For each client the index of the file with its state. -1 if this slot has none."""
    files: list[PartFile] = field(default_factory=list)
    round: int = -1
    """The round of the checkpoint. -1 if the slot is empty."""
    outdated: set[int] = field(default_factory=set)
    """Clients that were trained since this slot was written."""

    def names(self, folder: Path) -> set[str]:
        """The names of all its files."""
        return {part.name for part in self.files} | ({manifest_path(folder, self.round).name} if self.files else set())


def empty_slots(count: int, num_clients: int) -> list[Slot]:
    """The slots of a run that begins."""
    return [Slot([-1] * num_clients) for _ in range(max(1, count))]


def restored_slots(count: int, latest: Manifest, others: Iterable[Manifest]) -> list[Slot]:
    """The slots of a run that continues from `latest`.

    Args:
        count: number of slots.
        latest: the loaded checkpoint.
        others: good checkpoints of earlier rounds, latest first, whose files the run goes on using.
    """
    slots = [Slot(latest.clients, latest.files, latest.round)]
    for manifest in others:
        # a client trained after that checkpoint is in a file that `latest` has written after it
        outdated = {c for c in latest.trained if latest.files[latest.clients[c]].round > manifest.round}
        slots.append(Slot(manifest.clients, manifest.files, manifest.round, outdated))
    new = [Slot([-1] * len(latest.clients), outdated=set(latest.trained)) for _ in range(count)]
    return [*slots, *new][: max(1, count)]
