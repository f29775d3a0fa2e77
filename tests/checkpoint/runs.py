"""Runs that are saved and resumed, for the tests here."""

from __future__ import annotations

from pathlib import Path

from lightning.fabric import Fabric

from pfl_lightning.algorithms import FedOBP
from pfl_lightning.checkpoint import CheckpointConfig, Checkpoints, resume
from pfl_lightning.checkpoint.files import what_is_wrong, write_part
from pfl_lightning.checkpoint.manifest import Manifest, list_rounds, manifest_path
from pfl_lightning.loop import FederatedFabricLoop
from tests.toy import toy_loop

ALGORITHM = FedOBP(quantile=0.5)


def new_loop(**settings) -> FederatedFabricLoop:
    return toy_loop(Fabric(accelerator="cpu", devices=1), ALGORITHM, **{"participation": 0.4, "rounds": 6} | settings)


def saved_run(run_dir: Path, rounds: int = 4, keep: int = 2, **settings) -> FederatedFabricLoop:
    loop = new_loop(rounds=rounds, **settings)
    checkpoints = Checkpoints(run_dir, loop, CheckpointConfig(every_rounds=1, keep=keep))
    loop.on_round_end = [checkpoints.after_round]
    loop.fit()
    return loop


def resumed(
    run_dir: Path, fallback: bool = False, warnings: list[str] | None = None, **settings
) -> FederatedFabricLoop:
    loop = new_loop(**settings)
    told = [] if warnings is None else warnings
    resume(Checkpoints(run_dir, loop, CheckpointConfig(), warn=told.append), fallback)
    return loop


class FullDisk:
    """A disk that takes so many files and then no more."""

    def __init__(self, files: int) -> None:
        self.left = files

    def __call__(self, path, *words):
        self.left -= 1
        if self.left < 0:
            raise OSError(28, "No space left on device", str(path))
        return write_part(path, *words)


def assert_whole(folder: Path) -> None:
    """Every checkpoint that is there is good, and no file is there that none of them names."""
    manifests = [Manifest.read(manifest_path(folder, round_)) for round_ in list_rounds(folder)]
    parts = {part.name: part for manifest in manifests for part in manifest.files}
    assert [what_is_wrong(folder, part) for part in parts.values()] == [None] * len(parts)
    assert {path.name for path in folder.iterdir() if path.suffix != ".json"} == parts.keys()
