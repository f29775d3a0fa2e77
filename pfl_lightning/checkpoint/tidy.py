"""Removing what no checkpoint needs any more."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from pfl_lightning.checkpoint.manifest import Manifest, Unreadable, Unusable, list_rounds, manifest_path

OURS = re.compile(r"\.?\d{8,}(-server|-clients-\d+of\d+(-\d+)?)?\.(json|safetensors)(\.tmp)?")


def remove_old(folder: Path, latest: Manifest, keep: int, passed_over: Collection[int] = ()) -> None:
    """Keep the checkpoint `latest` and good ones before it, `keep` in all; remove all other files of checkpoints.

    Broken ones that were `passed_over` go, later ones too, and what a kill left behind. Where a manifest or the folder
    cannot be read, nothing is removed: what it names may be needed. What cannot be removed is tried again next time.
    """
    needed = {manifest_path(folder, latest.round).name, *(part.name for part in latest.files)}
    kept = 1
    try:
        for round_ in list_rounds(folder):
            if round_ < latest.round and round_ not in passed_over and kept < keep:
                path = manifest_path(folder, round_)
                with suppress(Unusable):
                    needed |= {path.name, *(part.name for part in _read(path).files)}
                    kept += 1
        # manifests go first: a file is never gone while a manifest names it
        for path in sorted(folder.iterdir(), key=lambda path: path.suffix != ".json"):
            if path.name not in needed and OURS.fullmatch(path.name):
                path.unlink(missing_ok=True)
    except OSError:
        return


def _read(path: Path) -> Manifest:
    try:
        return Manifest.read(path)
    except Unreadable as error:
        raise OSError(str(error)) from error
