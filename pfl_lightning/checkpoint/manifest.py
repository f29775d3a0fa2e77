"""The last file of a checkpoint: what it consists of, and by which checksums."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfl_lightning.atomic import write_text
from pfl_lightning.checkpoint.files import PartFile

FORMAT = 1
NAME = re.compile(r"(\d{8,})\.json")


class Unusable(Exception):
    """A checkpoint that cannot be used; the message says why."""


class Unreadable(Unusable):
    """The disk does not answer: the checkpoint itself may be good."""


@dataclass(frozen=True)
class Manifest:
    """A checkpoint is what its manifest says; files without one are no checkpoint."""

    format: int
    version: str
    """Of the package that wrote it."""
    torch: str
    round: int
    seed: int
    rng: int
    """A number that the random streams give after this round: they are the same streams where it is the same."""
    layout: str
    """Fingerprint of the model's tensors."""
    data: str
    """Fingerprint of the partition."""
    config: str
    """The resolved config, YAML."""
    server: int
    """Which file holds the server."""
    files: list[PartFile]
    clients: list[int]
    """Per client which file holds its state; -1: it was never trained."""
    history: dict[str, Any]
    """Ledger, best, last and other numbers so far."""

    def write(self, folder: Path) -> None:
        """Write it; from now on the checkpoint exists."""
        content = vars(self)
        # a line per key: json's own indentation gives every client a line, which takes ten times as long
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
        text = f'{{\n "sha256": "{_digest(content)}",\n "checkpoint": {{\n{lines}\n }}\n}}\n'
        write_text(manifest_path(folder, self.round), text)

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read and verify one; raises `Unusable`."""
        try:
            whole = json.loads(path.read_bytes())
            digest, content = whole["sha256"], whole["checkpoint"]
            intact = digest == _digest(content)
        except OSError as error:
            raise Unreadable(f"{path.name} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Unusable(f"{path.name} is damaged") from error
        if not intact:
            raise Unusable(f"{path.name} was changed: its checksum differs")
        try:
            if content["format"] != FORMAT:
                raise Unusable(
                    f"it was written by pfl_lightning {content['version']} in format {content['format']}, "
                    f"this version reads format {FORMAT}"
                )
            content["files"] = [PartFile(*part) for part in content["files"]]
            return cls(**content)
        except (KeyError, TypeError) as error:
            raise Unusable(f"{path.name} is no manifest of a checkpoint") from error


def manifest_path(folder: Path, round_: int) -> Path:
    """Where the manifest of a round is."""
    return folder / f"{round_:08d}.json"


def list_rounds(folder: Path) -> list[int]:
    """The rounds of which there is a manifest, the latest first."""
    if not folder.is_dir():
        return []
    return sorted((int(m[1]) for path in folder.iterdir() if (m := NAME.fullmatch(path.name))), reverse=True)


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
