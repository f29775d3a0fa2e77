"""Checkpoints that are broken, of something else, or of another version: one line, and never a wrong model."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from pfl_lightning.checkpoint import CheckpointConfig, Checkpoints, resume
from pfl_lightning.checkpoint.manifest import _digest, list_rounds, manifest_path
from pfl_lightning.errors import ConfigError
from pfl_lightning.loop import FederatedFabricLoop
from tests.checkpoint.runs import ALGORITHM, assert_whole, new_loop, resumed, saved_run
from tests.toy import fingerprint, toy_summary


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


def test_a_broken_checkpoint_that_was_passed_over_is_not_kept_in_place_of_a_good_one(tmp_path):
    saved_run(tmp_path)
    next((tmp_path / "checkpoints").glob("00000004-server*")).unlink()
    loop = new_loop(rounds=5)
    checkpoints = Checkpoints(tmp_path, loop, CheckpointConfig(every_rounds=5, every_minutes=0), warn=lambda _: None)
    loop.on_round_end = [checkpoints.after_round]
    assert resume(checkpoints, fallback=True) == 3
    assert list_rounds(tmp_path / "checkpoints") == [4, 3], "it may still be repaired by hand"
    loop.fit()
    assert list_rounds(tmp_path / "checkpoints") == [5, 3]
    assert_whole(tmp_path / "checkpoints")


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
    rewrite_manifest(tmp_path, format=2, version="9.0")
    with pytest.raises(ConfigError, match=r"written by pfl_lightning 9.0 in format 2, this version reads format 1"):
        resumed(tmp_path)


def rewrite_manifest(run_dir: Path, **changes) -> None:
    path = manifest_path(run_dir / "checkpoints", 4)
    whole = json.loads(path.read_text())
    whole["checkpoint"] |= changes
    whole["sha256"] = _digest(whole["checkpoint"])
    path.write_text(json.dumps(whole))


def test_a_newer_version_is_refused_and_the_older_checkpoint_offered(tmp_path):
    saved_run(tmp_path)
    rewrite_manifest(tmp_path, version="9.0")
    with pytest.raises(
        ConfigError, match=r"written by pfl_lightning 9\.0, which is newer than this .* round 3 is good"
    ):
        resumed(tmp_path)
    told: list[str] = []
    assert resumed(tmp_path, fallback=True, warnings=told).server.round == 3
    assert len(told) == 1


def test_an_older_version_goes_on_with_a_warning(tmp_path):
    saved_run(tmp_path)
    rewrite_manifest(tmp_path, version="0.0.1", torch="2.0")
    told: list[str] = []
    assert resumed(tmp_path, warnings=told).server.round == 4
    assert told == [
        "the run began with torch 2.0; results may differ in the last digits",
        "the run was saved by pfl_lightning 0.0.1; this one's results may differ",
    ]


def test_some_other_json_is_no_manifest(tmp_path):
    saved_run(tmp_path, keep=1)
    for content in ({}, [], {"format": 1}, {"format": 1, "files": [[1]]}):
        text = json.dumps({"sha256": _digest(content), "checkpoint": content})  # type: ignore[arg-type]
        manifest_path(tmp_path / "checkpoints", 4).write_text(text)
        with pytest.raises(ConfigError, match=r"00000004.json is no manifest of a checkpoint"):
            resumed(tmp_path)


def hashes(loop: FederatedFabricLoop) -> tuple[int, str, str]:
    return loop.server.round, loop.model_sha256(), loop.store.digest()


def test_two_hundred_damaged_checkpoints(tmp_path):
    """Cut off or with a flipped bit anywhere: refused with one line, or the older one is used; never a wrong model."""
    loop = new_loop(rounds=4)
    checkpoints = Checkpoints(tmp_path, loop, CheckpointConfig(every_rounds=1))
    good: set[tuple[int, str, str]] = set()
    loop.on_round_end = [checkpoints.after_round, lambda loop: good.add(hashes(loop))]
    loop.fit()
    whole = {path: path.read_bytes() for path in sorted((tmp_path / "checkpoints").iterdir())}
    rng = random.Random(0)
    refused: list[str] = []
    told: list[str] = []
    older = 0
    for number in range(200):
        for path, content in whole.items():
            path.write_bytes(content)
        path, content = list(whole.items())[number % len(whole)]
        place = rng.randrange(len(content))
        flipped = content[:place] + bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1 :]
        path.write_bytes(rng.choice([content[:place], flipped]))
        loop = new_loop()
        try:
            resume(Checkpoints(tmp_path, loop, CheckpointConfig(), warn=told.append), fallback=number % 3 > 0)
            assert hashes(loop) in good, path
            older += loop.server.round == 3
        except ConfigError as error:
            refused.append(str(error))
    assert all("\n" not in text and "cannot be used" in text for text in (*refused, *told))
    assert len(told) == older > 20
    assert len(refused) > 20
