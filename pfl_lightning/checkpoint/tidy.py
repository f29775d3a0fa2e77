"""Removing what no checkpoint needs any more."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from pfl_lightning.checkpoint.manifest import Manifest, Unusable, list_rounds, manifest_path

OURS = re.compile(r"\.?\d{8,}(-server|-clients-\d+of\d+(-\d+)?)?\.(json|safetensors)(\.tmp)?")


def remove_old(folder: Path, round_: int, keep: int) -> None:
    """Keep the checkpoint of `round_` and those before it, `keep` in all; remove all other files of checkpoints.

    Later ones are there after a broken checkpoint was passed over; what a kill left behind goes as well. A file that
    cannot be removed is tried again next time.
    """
    needed: set[str] = set()
    kept = 0
    for candidate in list_rounds(folder):
        path = manifest_path(folder, candidate)
        if candidate <= round_ and kept < keep:
            with suppress(Unusable):
                needed.update(part.name for part in Manifest.read(path).files)
                needed.add(path.name)
                kept += 1
    # manifests go first: a file is never gone while a manifest names it
    for path in sorted(folder.iterdir(), key=lambda path: path.suffix != ".json"):
        if path.name not in needed and OURS.fullmatch(path.name):
            with suppress(OSError):
                path.unlink()
