"""Saving and resuming: complete, incremental, verified, and never half."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric

import pfl_lightning.checkpoint.checkpoints as module
from pfl_lightning.algorithms import FedAvg, FedOBP
from pfl_lightning.checkpoint import CheckpointConfig, Checkpoints, resume
from pfl_lightning.checkpoint.manifest import Manifest, _digest, list_rounds, manifest_path
from pfl_lightning.errors import ConfigError, RunError
from pfl_lightning.loop import FederatedFabricLoop
from tests.ranks import run_on_ranks
from tests.toy import fingerprint, toy_loop, toy_summary

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


def test_a_run_without_any_checkpoint_starts_at_the_beginning(tmp_path):
    assert resumed(tmp_path).server.round == 0


class FullDisk:
    """A disk that takes so many files and then no more."""

    def __init__(self, files: int) -> None:
        self.left = files

    def __call__(self, path, *words):
        from pfl_lightning.checkpoint.files import write_part

        self.left -= 1
        if self.left < 0:
            raise OSError(28, "No space left on device", str(path))
        return write_part(path, *words)


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


def test_a_broken_checkpoint_is_passed_over_only_when_asked(tmp_path):
    saved_run(tmp_path)
    part = next((tmp_path / "checkpoints").glob("00000004-server*"))
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(ConfigError, match=r"round 4 .* has .* bytes in place of .*; that of round 3 is good"):
        resumed(tmp_path)
    told: list[str] = []
    loop = resumed(tmp_path, fallback=True, warnings=told)
    assert loop.server.round == 3
    assert len(told) == 1
    assert "continuing from round 3" in told[0]
    undisturbed = toy_summary(1, ALGORITHM, participation=0.4, rounds=6)
    assert fingerprint(loop.fit()) == fingerprint(undisturbed)


def test_no_good_checkpoint_at_all(tmp_path):
    saved_run(tmp_path)
    for part in (tmp_path / "checkpoints").glob("*-server*"):
        part.unlink()
    with pytest.raises(ConfigError, match=r"round 4 .*00000004-server.safetensors is missing; there is no good one"):
        resumed(tmp_path, fallback=True)


def test_another_model_other_data_and_another_seed_are_refused(tmp_path):
    saved_run(tmp_path)
    with pytest.raises(ConfigError, match="another model"):
        resumed(tmp_path, num_clients=8)
    with pytest.raises(ConfigError, match="random numbers"):
        resumed(tmp_path, seed=2)


def test_a_newer_format_is_refused_with_both_numbers(tmp_path):
    saved_run(tmp_path)
    path = manifest_path(tmp_path / "checkpoints", 4)
    whole = json.loads(path.read_text())
    whole["checkpoint"] |= {"format": 2, "version": "9.0"}
    whole["sha256"] = _digest(whole["checkpoint"])
    path.write_text(json.dumps(whole))
    with pytest.raises(ConfigError, match=r"written by pfl_lightning 9.0 in format 2, this version reads format 1"):
        resumed(tmp_path)


def test_two_hundred_damaged_checkpoints(tmp_path):
    """Cut off or with a flipped bit anywhere: refused with one line, or unharmed; never a wrong model."""
    good = fingerprint(saved_run(tmp_path, keep=1).summary())
    files = sorted(path for path in (tmp_path / "checkpoints").iterdir())
    rng = random.Random(0)
    loop = new_loop()
    refused = []
    for number in range(200):
        path = files[number % len(files)]
        whole = path.read_bytes()
        if rng.random() < 0.5:
            path.write_bytes(whole[: rng.randrange(len(whole))])
        else:
            place = rng.randrange(len(whole))
            path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << rng.randrange(8))]) + whole[place + 1 :])
        try:
            resume(Checkpoints(tmp_path, loop, CheckpointConfig()), fallback=bool(number % 2))
            assert fingerprint(loop.summary()) == good, path
        except ConfigError as error:
            refused.append(str(error))
        path.write_bytes(whole)
    assert all("\n" not in text and "cannot be used" in text for text in refused)
    assert len(refused) > 190, "only white space in a manifest may change"


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
