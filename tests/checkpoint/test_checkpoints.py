"""Saving and resuming: complete, incremental, at the right moments, and never half a checkpoint."""

from __future__ import annotations

import os
import stat

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric

import pfl_lightning.checkpoint.checkpoints as module
from pfl_lightning.algorithms import FedAvg
from pfl_lightning.callback import Callback
from pfl_lightning.checkpoint import CheckpointConfig, Checkpoints, resume
from pfl_lightning.checkpoint.manifest import Manifest, list_rounds, manifest_path
from pfl_lightning.foundation.errors import ConfigError, RunError
from pfl_lightning.metrics.record import RoundRecord
from pfl_lightning.monitor.snapshot import EventFile, Snapshot
from tests.checkpoint.runs import ALGORITHM, AfterRound, FullDisk, assert_whole, new_loop, resumed, saved_run
from tests.helpers.ranks import run_on_ranks
from tests.helpers.toy import fingerprint, toy_loop


def test_a_resumed_loop_equals_the_saved_one(tmp_path):
    before, after = saved_run(tmp_path), resumed(tmp_path)
    assert after.server.round == 4
    assert torch.equal(after.server.vector, before.server.vector)
    assert after.store.digest() == before.store.digest()
    assert fingerprint(after.summary()) == fingerprint(before.summary())
    assert after.history.columns() == before.history.columns()
    assert np.array_equal(after.history.latest_after, before.history.latest_after, equal_nan=True)


def test_only_changed_clients_are_written_and_two_checkpoints_stay(tmp_path):
    """Two of twenty clients are trained in a round. Each checkpoint writes those of two rounds."""
    saved_run(tmp_path, rounds=9, num_clients=20, participation=0.1)
    folder = tmp_path / "checkpoints"
    assert list_rounds(folder) == [9, 8]
    latest = Manifest.read(manifest_path(folder, 9))
    new = next(file for file in latest.files if file.name.startswith("00000009-clients"))
    assert new.clients <= 4
    assert len({file.round for file in latest.files}) > 2, "the other clients stay in the files of earlier rounds"
    assert_whole(folder)


@pytest.mark.parametrize(("keep", "rounds"), [(1, [4]), (3, [4, 3, 2])])
def test_keep_sets_the_number_of_checkpoints(keep, rounds, tmp_path):
    before = saved_run(tmp_path, keep=keep)
    assert list_rounds(tmp_path / "checkpoints") == rounds
    assert_whole(tmp_path / "checkpoints")
    assert resumed(tmp_path).model_sha256() == before.model_sha256()


def test_keep_0_writes_nothing_at_all(tmp_path):
    loop = new_loop(rounds=2)
    checkpoints = Checkpoints(tmp_path, loop, CheckpointConfig(every_rounds=1, keep=0))
    loop.fit([checkpoints])
    checkpoints.finish()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (3, 2), (2, 3)])
def test_keep_may_change_when_a_run_is_resumed(before, after, tmp_path):
    saved_run(tmp_path, rounds=5, keep=before, num_clients=12, participation=0.2)
    loop = new_loop(rounds=9, num_clients=12, participation=0.2)
    checkpoints = Checkpoints(tmp_path, loop, CheckpointConfig(every_rounds=1, keep=after))
    assert resume(checkpoints, fallback=False) == 5
    loop.fit([checkpoints])
    folder = tmp_path / "checkpoints"
    assert list_rounds(folder) == [9, 8, 7][:after]
    assert_whole(folder)
    for round_ in list_rounds(folder)[:-1]:  # each checkpoint alone gives the run's results
        manifest_path(folder, round_).unlink()
        again = resumed(tmp_path, rounds=9, num_clients=12, participation=0.2)
        assert fingerprint(again.fit()) == fingerprint(loop.summary())


def test_file_permissions_follow_the_umask(tmp_path):
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
    """A checkpoint has two files. The third checkpoint fails at its first or at its second file."""
    monkeypatch.setattr(module, "write_part", FullDisk(files))
    loop = new_loop()
    told: list[str] = []
    checkpoints = Checkpoints(tmp_path, loop, CheckpointConfig(every_rounds=1), warn=told.append)
    summary = loop.fit([checkpoints])
    assert len(told) == 1, "it is not reported again before a checkpoint has worked"
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
        return checkpoints.save(), len(checkpoints.slots[0].outdated)

    for problem, outdated in run_on_ranks(work, 2):
        assert "No space left" in (problem or "")
        assert outdated == 7, "all of them are written next time"
    assert list_rounds(tmp_path / "checkpoints") == []


def test_the_first_ranks_clock_decides_for_all(tmp_path):
    def work(fabric: Fabric) -> list[int]:
        loop = toy_loop(fabric, ALGORITHM, rounds=4, participation=0.4)
        checkpoints = Checkpoints(tmp_path, loop, CheckpointConfig())
        if fabric.global_rank == 0:
            checkpoints._is_due = lambda: loop.server.round in (2, 3)  # type: ignore[method-assign]
        else:
            checkpoints._is_due = lambda: pytest.fail("only rank 0 is asked")  # type: ignore[method-assign]
        saved = []
        loop.fit([checkpoints, AfterRound(lambda: saved.append(checkpoints.saved_round))])
        return saved

    assert run_on_ranks(work, 2) == [[-1, 2, 3, 3]] * 2


def test_settings_are_checked():
    for key, value in {"every_rounds": -1, "every_minutes": -1.0, "keep": -1, "max_cost": 0.0}.items():
        with pytest.raises(ConfigError, match=f"{key}: {value} is not allowed"):
            CheckpointConfig(**{key: value})


def test_saving_by_time_saves_the_first_round_and_respects_max_cost(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    loop = new_loop()
    checkpoints = Checkpoints(tmp_path, loop, CheckpointConfig(every_minutes=1.0, max_cost=0.02))
    assert checkpoints._is_due(), "the first one shows early whether the disk can be written"
    checkpoints._tried_at, checkpoints._cost = 0.0, 0.1
    now[0] = 59.0
    assert not checkpoints._is_due()
    now[0] = 60.0
    assert checkpoints._is_due()
    checkpoints._cost = 3.0
    assert not checkpoints._is_due(), "3 s are more than 2 % of a minute"
    now[0] = 150.0
    assert checkpoints._is_due()


def test_a_checkpoint_before_the_first_round(tmp_path):
    loop = toy_loop(Fabric(accelerator="cpu", devices=1), FedAvg())
    checkpoints = Checkpoints(tmp_path, loop, CheckpointConfig())
    assert checkpoints.save() is None
    assert resume(checkpoints, fallback=False) == 0
    assert loop.server.round == 0


class Counter(Callback):
    """Counts rounds, in a tensor that checkpoints save."""

    def __init__(self) -> None:
        self.rounds = torch.zeros(1)

    def on_round_end(self, record: RoundRecord) -> None:
        self.rounds += 1

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"rounds": self.rounds}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.rounds = state["rounds"]


def test_the_state_of_callbacks_is_saved(tmp_path):
    """Two callbacks of one class, each with its own state; a third one is new when the run is resumed."""
    loop, counters = new_loop(rounds=3), [Counter(), Counter()]
    checkpoints = Checkpoints(tmp_path, loop, CheckpointConfig(every_rounds=1), callbacks=counters)
    loop.fit([*counters, counters[0], checkpoints])
    loop, counters = new_loop(rounds=5), [Counter(), Counter(), Counter()]
    checkpoints = Checkpoints(tmp_path, loop, CheckpointConfig(), callbacks=counters)
    resume(checkpoints, fallback=False)
    loop.fit([*counters, checkpoints])
    assert [counter.rounds.item() for counter in counters] == [8, 5, 2]


def test_the_result_files_are_saved(tmp_path):
    loop = new_loop(rounds=1)
    files = Snapshot(b"round,loss\n1,0.5\n", [EventFile(1, 10, "abc")])
    checkpoints = Checkpoints(tmp_path, loop, CheckpointConfig(every_rounds=1), results=lambda: files)
    loop.fit([checkpoints])
    again = Checkpoints(tmp_path, new_loop(rounds=1), CheckpointConfig())
    resume(again, fallback=False)
    assert again.loaded_results == files
