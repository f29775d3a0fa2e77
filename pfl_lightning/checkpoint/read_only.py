"""Finding a checkpoint to read. Nothing is removed, repaired or written."""

from __future__ import annotations

from pathlib import Path

from pfl_lightning.checkpoint.files import problem_with
from pfl_lightning.checkpoint.manifest import Manifest, list_rounds, manifest_path
from pfl_lightning.checkpoint.sealed import Unusable
from pfl_lightning.foundation.errors import ConfigError


def find_checkpoint(run_dir: Path) -> Manifest:
    """The latest good checkpoint of a run; raises a `ConfigError`."""
    folder, problem = run_dir / "checkpoints", "there is no checkpoint"
    for round_ in list_rounds(folder):
        try:
            manifest = Manifest.read(manifest_path(folder, round_))
        except Unusable as reason:
            problem = str(reason)
            continue
        wrong = next(filter(None, (problem_with(folder, part) for part in manifest.files)), None)
        if wrong is None:
            return manifest
        problem = wrong
    raise ConfigError(f"run: {run_dir} has no model that can be read: {problem}; use the directory of a run")
