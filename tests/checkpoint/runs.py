"""Runs that are saved and resumed, for the tests in this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lightning.fabric import Fabric
from typing_extensions import override

from pfl_lightning.algorithms import FedOBP
from pfl_lightning.callback import Callback
from pfl_lightning.checkpoint import CheckpointConfig, Checkpoints, resume
from pfl_lightning.checkpoint.files import problem_with, write_part
from pfl_lightning.checkpoint.manifest import Manifest, list_rounds, manifest_path
from pfl_lightning.loop import FederatedFabricLoop
from pfl_lightning.metrics.record import RoundRecord
from tests.helpers.toy import toy_loop

ALGORITHM = FedOBP(quantile=0.5)


def new_loop(**settings) -> FederatedFabricLoop:
    return toy_loop(Fabric(accelerator="cpu", devices=1), ALGORITHM, **{"participation": 0.4, "rounds": 6} | settings)


def saved_run(run_dir: Path, rounds: int = 4, keep: int = 2, **settings) -> FederatedFabricLoop:
    loop = new_loop(rounds=rounds, **settings)
    checkpoints = Checkpoints(run_dir, loop, CheckpointConfig(every_rounds=1, keep=keep))
    loop.fit([checkpoints])
    return loop


def resumed(
    run_dir: Path, fallback: bool = False, warnings: list[str] | None = None, **settings
) -> FederatedFabricLoop:
    loop = new_loop(**settings)
    told = [] if warnings is None else warnings
    resume(Checkpoints(run_dir, loop, CheckpointConfig(), warn=told.append), fallback)
    return loop


class AfterRound(Callback):
    """Calls a function after every round."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.function = function

    @override
    def on_round_end(self, record: RoundRecord) -> None:
        self.function()


class FullDisk:
    """A disk that takes a number of files and then is full."""

    def __init__(self, files: int) -> None:
        self.left = files

    def __call__(self, path, *words):
        self.left -= 1
        if self.left < 0:
            raise OSError(28, "No space left on device", str(path))
        return write_part(path, *words)


def assert_whole(folder: Path) -> None:
    """Every checkpoint in the folder is good, no two share a file, and there are no other files."""
    manifests = [Manifest.read(manifest_path(folder, round_)) for round_ in list_rounds(folder)]
    parts = [part for manifest in manifests for part in manifest.files]
    assert [problem_with(folder, part) for part in parts] == [None] * len(parts)
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".json") == sorted(p.name for p in parts)
