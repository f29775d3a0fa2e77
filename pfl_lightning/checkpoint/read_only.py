"""Finding a checkpoint to read. Nothing is removed, repaired or written."""

from __future__ import annotations

import sys
from pathlib import Path

from pfl_lightning.checkpoint.files import problem_with
from pfl_lightning.checkpoint.manifest import Manifest, list_rounds, manifest_path
from pfl_lightning.checkpoint.sealed import Unusable
from pfl_lightning.foundation.errors import ConfigError


def find_checkpoint(run_dir: Path) -> Manifest:
    """The latest good checkpoint of a run. Raises a `ConfigError`. If a broken one is skipped, that is reported."""
    folder, problem, latest = run_dir / "checkpoints", "there is no checkpoint", 0
    for round_ in list_rounds(folder):
        latest = max(latest, round_)
        try:
            manifest = Manifest.read(manifest_path(folder, round_))
        except Unusable as reason:
            problem = str(reason)
            continue
        wrong = next(filter(None, (problem_with(folder, part) for part in manifest.files)), None)
        if wrong is None:
            if round_ < latest:
                text = (
                    f"the checkpoint of round {latest} in {run_dir} cannot be used: {problem}; this is round {round_}"
                )
                print(f"pfl_lightning: warning: {text}", file=sys.stderr, flush=True)
            return manifest
        problem = wrong
    raise ConfigError(f"run: {run_dir} has no model that can be read: {problem}; use the directory of a run")
