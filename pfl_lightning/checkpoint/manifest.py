"""The last file of a checkpoint: it names all other files with their checksums."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pfl_lightning.checkpoint.files import PART_NAME, PartFile
from pfl_lightning.checkpoint.sealed import FORMAT, Unusable, read_sealed, write_sealed
from pfl_lightning.monitor.snapshot import EventFile

MANIFEST_NAME = re.compile(r"(\d{8,})\.json")


@dataclass(frozen=True)
class Manifest:
    """A checkpoint. Files that no manifest names belong to no checkpoint."""

    torch: str
    """Version of torch that wrote it."""
    round: int
    seed: int
    rng: int
    """A number drawn from the random streams after this round. It differs if the random streams differ."""
    layout: str
    """Fingerprint of the model's tensors."""
    data: str
    """Fingerprint of the samples and of the partition."""
    config: str
    """The resolved config, YAML."""
    files: list[PartFile]
    """The server's file, then the files of client states."""
    clients: list[int]
    """For each client the index of the file with its state. -1 if it was never trained."""
    history: dict[str, Any]
    """Traffic, best values, last values and other totals so far."""
    events: list[EventFile]
    """The TensorBoard files at this round. (The rows of metrics.csv are in the server's file.)"""
    version: str = ""
    """Version of pfl_lightning that wrote it."""
    format: int = FORMAT

    @property
    def server(self) -> PartFile:
        """The file with the server's tensors."""
        return self.files[0]

    @property
    def trained(self) -> list[int]:
        """The clients that have a state."""
        return [client for client, file in enumerate(self.clients) if file >= 0]

    def write(self, folder: Path) -> None:
        """Write the manifest. This completes the checkpoint."""
        content = {name: value for name, value in vars(self).items() if name not in ("version", "format")}
        write_sealed(manifest_path(folder, self.round), content)

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read and verify a manifest. Raises `Unusable`."""
        content = read_sealed(path)
        try:
            content["files"] = [PartFile(*part) for part in content["files"]]
            content["events"] = [EventFile(*file) for file in content["events"]]
            manifest = cls(**content)
            sound = all(-1 <= index < len(manifest.files) for index in manifest.clients) and len(manifest.files) > 0
            sound = sound and all(PART_NAME.fullmatch(part.name) for part in manifest.files)
        except (KeyError, TypeError) as error:
            raise Unusable(f"{path.name} is not the manifest of a checkpoint") from error
        if not sound or content.keys() != {field.name for field in fields(cls)}:
            raise Unusable(f"{path.name} is not the manifest of a checkpoint")
        return manifest


def manifest_path(folder: Path, round_: int) -> Path:
    """The path of the manifest of a round."""
    return folder / f"{round_:08d}.json"


def list_rounds(folder: Path) -> list[int]:
    """The rounds that have a manifest, latest first."""
    if not folder.is_dir():
        return []
    return sorted((int(m[1]) for path in folder.iterdir() if (m := MANIFEST_NAME.fullmatch(path.name))), reverse=True)
