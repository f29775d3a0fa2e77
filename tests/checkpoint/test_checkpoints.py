"""Saving and resuming: complete, incremental, at the right moments, and never half."""

from __future__ import annotations

import os
import stat

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric

import pfl_lightning.checkpoint.checkpoints as module
from pfl_lightning.algorithms import FedAvg
from pfl_lightning.checkpoint import CheckpointConfig, Checkpoints, resume
from pfl_lightning.checkpoint.manifest import Manifest, list_rounds, manifest_path
from pfl_lightning.errors import ConfigError, RunError
from tests.checkpoint.runs import ALGORITHM, FullDisk, new_loop, resumed, saved_run
from tests.ranks import run_on_ranks
from tests.toy import fingerprint, toy_loop


def test_everything_is_there_again(tmp_path):
    before, after = saved_run(tmp_path), resumed(tmp_path)
    assert after.server.round == 4
    assert torch.equal(after.server.vector, before.server.vector)
    assert after.store.digest() == before.store.digest()
    assert fingerprint(after.summary()) == fingerprint(before.summary())
    assert after.history.columns() == before.history.columns()
    assert np.array_equal(after.history.latest_after, before.history.latest_after, equal_nan=True)


def test_only_changed_clients_are_written_and_two_checkpoints_stay(tmp_path):
    saved_run(tmp_path, rounds=6, num_clients=20, participation=0.1)
    folder = tmp_path / "checkpoints"
    assert list_rounds(folder) == [6, 5]
    latest = Manifest.read(manifest_path(folder, 6))
    new = next(file for file in latest.files if file.name.startswith("00000006-clients"))
    assert new.clients <= 4
    assert len({file.name[:8] for file in latest.files}) > 2, "others are still where they were written"
    needed = {f.name for r in (5, 6) for f in Manifest.read(manifest_path(folder, r)).files}
    assert {path.name for path in folder.iterdir()} == needed | {"00000005.json", "00000006.json"}


def test_files_can_be_read_by_all_whom_the_umask_allows_to(tmp_path):
    before = os.umask(0o027)
    try:
        saved_run(tmp_path)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "checkpoints").iterdir()} == {0o640}


def test_a_run_without_any_checkpoint_starts_at_the_beginning(tmp_path):
    assert resumed(tmp_path).server.round == 0


@pytest.mark.parametrize("files", [4, 5])
def test_a_full_disk_leaves_the_last_checkpoint_and_training_goes_on(files, tmp_path, monkeypatch):
    """Two files a checkpoint: the third checkpoint fails at its first or at its second one."""
    monkeypatch.setattr(module, "write_part", FullDisk(files))
    loop = new_loop()
    told: list[str] = []
    checkpoints = Checkpoints(tmp_path, loop, CheckpointConfig(every_rounds=1), warn=told.append)
    loop.on_round_end = [checkpoints.after_round]
    summary = loop.fit()
    assert len(told) == 1, "it is not said again until it has worked once"
    assert told[0].startswith("the checkpoint of round 3 cannot be written to ")
    assert "No space left on device; training goes on" in told[0]
    with pytest.raises(RunError, match="the checkpoint of round 6 cannot be written"):
        checkpoints.finish()
    monkeypatch.undo()
    assert {path.name[:8] for path in (tmp_path / "checkpoints").iterdir()} == {"00000001", "00000002"}, "no attempts"
    again = resumed(tmp_path)
    assert again.server.round == 2
    assert fingerprint(again.fit()) == fingerprint(summary)


def test_a_failure_on_one_rank_is_known_to_all(tmp_path):
    def work(fabric: Fabric) -> tuple[str | None, int]:
        loop = toy_loop(fabric, ALGORITHM, rounds=1)
        checkpoints = Checkpoints(tmp_path, loop, CheckpointConfig())
        loop.fit()
        if fabric.global_rank == 1:
            module.write_part = FullDisk(0)
        return checkpoints.save(), len(loop.store.changed)

    for problem, changed in run_on_ranks(work, 2):
        assert "No space left" in (problem or "")
        assert changed == 7, "it is to be written next time"
    assert list_rounds(tmp_path / "checkpoints") == []


def test_the_first_ranks_clock_decides_for_all(tmp_path):
    def work(fabric: Fabric) -> list[int]:
        loop = toy_loop(fabric, ALGORITHM, rounds=4, participation=0.4)
        checkpoints = Checkpoints(tmp_path, loop, CheckpointConfig())
        if fabric.global_rank == 0:
            checkpoints._is_due = lambda: loop.server.round in (2, 3)  # type: ignore[method-assign]
        else:
            checkpoints._is_due = lambda: pytest.fail("it is not asked")  # type: ignore[method-assign]
        saved = []
        loop.on_round_end = [checkpoints.after_round, lambda _: saved.append(checkpoints.saved_round)]
        loop.fit()
        return saved

    assert run_on_ranks(work, 2) == [[-1, 2, 3, 3]] * 2


def test_settings_are_checked():
    for key, value in {"every_rounds": -1, "every_minutes": -1.0, "keep": 0, "max_cost": 0.0}.items():
        with pytest.raises(ConfigError, match=f"{key}: {value} is not allowed"):
            CheckpointConfig(**{key: value})


def test_by_time_the_first_round_is_saved_and_then_as_often_as_it_may_cost(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    loop = new_loop()
    checkpoints = Checkpoints(tmp_path, loop, CheckpointConfig(every_minutes=1.0, max_cost=0.02))
    assert checkpoints._is_due(), "the first one shows at once whether the disk can be written"
    checkpoints._tried_at, checkpoints._cost = 0.0, 0.1
    now[0] = 59.0
    assert not checkpoints._is_due()
    now[0] = 60.0
    assert checkpoints._is_due()
    checkpoints._cost = 3.0
    assert not checkpoints._is_due(), "3 s are more than 2 % of a minute"
    now[0] = 150.0
    assert checkpoints._is_due()


def test_a_first_checkpoint_is_of_plain_fedavg_too(tmp_path):
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), FedAvg())
    checkpoints = Checkpoints(tmp_path, loop, CheckpointConfig())
    assert checkpoints.save() is None, "before any round"
    assert resume(checkpoints, fallback=False) == 0
    assert loop.server.round == 0
