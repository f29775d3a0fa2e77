"""What --report records in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric

from pfl_lightning.algorithms import FedPURIN
from pfl_lightning.cli import fit
from pfl_lightning.model import masks
from pfl_lightning.report.mask_record import MaskHistory, MaskRecorder
from tests.helpers.ranks import run_on_ranks
from tests.helpers.toy import toy_loop

SMALL = [
    "--loop.participation", "0.03", "--task.net", "SmallCNN", "--loop.rounds", "2", "--loop.eval_every", "0",
    "--fabric.devices", "1",
]  # fmt: skip


def recorded(folder: Path, world: int, **config: Any) -> MaskHistory:
    def work(fabric: Fabric) -> None:
        loop = toy_loop(fabric, FedPURIN(tau=0.3), **{"rounds": 5, "eval_every": 0, **config})
        loop.fit([MaskRecorder(folder, loop)])

    folder.mkdir()
    run_on_ranks(work, world)
    return MaskHistory.load(folder / "masks.safetensors")


def test_masks_are_recorded_on_the_command_line(tmp_path: Path) -> None:
    words = ["--algorithm", "FedPURIN", "--report.masks", "true", *SMALL, "--run_dir", str(tmp_path / "run")]
    assert fit.run(words) == 0
    history = MaskHistory.load(tmp_path / "run/masks.safetensors")
    assert history.rounds == 2
    assert int(history.visits.sum()) == 6


def test_the_record_of_a_resumed_run_covers_all_its_rounds(tmp_path: Path) -> None:
    words = ["--algorithm", "FedPURIN", "--report.masks", "true", *SMALL]
    assert fit.run([*words, "--run_dir", str(tmp_path / "whole")]) == 0
    assert fit.run([*words, "--run_dir", str(tmp_path / "parts"), "--loop.rounds", "1"]) == 0
    assert MaskHistory.load(tmp_path / "parts/masks.safetensors").rounds == 1
    assert fit.run(["--resume", str(tmp_path / "parts"), "--loop.rounds", "2"]) == 0
    whole, parts = (tmp_path / name / "masks.safetensors" for name in ("whole", "parts"))
    assert MaskHistory.load(parts).rounds == 2
    assert whole.read_bytes() == parts.read_bytes()


@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_counts_are_those_of_every_round_and_the_same_on_two_ranks(tmp_path: Path, participation: float) -> None:
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), FedPURIN(tau=0.3), rounds=5, participation=participation)
    counts, visits = torch.zeros(7, 99, dtype=torch.int32), torch.zeros(7, dtype=torch.int64)
    for _ in range(5):
        for client in loop.round().cohort:
            counts[client] += masks.unpack(loop.store.states[client]["mask"], loop.server.layout.size)[:99]
            visits[client] += 1
    for world in (1, 2):
        history = recorded(tmp_path / str(world), world, participation=participation)
        assert torch.equal(history.counts, counts)
        assert torch.equal(history.visits, visits)
        assert history.rounds == 5
