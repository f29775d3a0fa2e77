"""Removing the files of checkpoints no longer kept, and those that a kill left behind."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from pfl_lightning.checkpoint.files import PART_NAME
from pfl_lightning.checkpoint.manifest import MANIFEST_NAME

OUR_NAMES = re.compile(rf"\.?({PART_NAME.pattern}|{MANIFEST_NAME.pattern})(\.tmp)?")


def remove_unneeded(folder: Path, needed: Collection[str]) -> None:
    """Remove all files of checkpoints except the `needed` ones.

    Other files in the folder stay. A file that cannot be removed stays until the next call.
    """
    with suppress(OSError):
        # manifests first: a file is never gone while a manifest names it
        for path in sorted(folder.iterdir(), key=lambda path: path.suffix != ".json"):
            if path.name not in needed and OUR_NAMES.fullmatch(path.name):
                path.unlink(missing_ok=True)
