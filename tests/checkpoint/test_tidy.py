"""Which files are removed, and which never are."""

from __future__ import annotations

import itertools

import pytest

import pfl_lightning.checkpoint.checkpoints as module
from pfl_lightning.checkpoint import CheckpointConfig, Checkpoints, resume
from pfl_lightning.checkpoint.manifest import list_rounds
from tests.checkpoint.runs import AfterRound, FullDisk, assert_whole, new_loop, resumed, saved_run
from tests.helpers.toy import fingerprint


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_kept_checkpoints_stay_whole_while_writes_fail(keep, tmp_path, monkeypatch):
    """Files are given up, merged and removed over 25 rounds in which every fifth file cannot be written."""
    count = itertools.count(1)
    monkeypatch.setattr(module, "MOST_FILES", 3)
    monkeypatch.setattr(module, "write_part", lambda *words: FullDisk(next(count) % 5)(*words))
    folder, saved = tmp_path / "checkpoints", []
    loop = new_loop(rounds=25, num_clients=12, participation=0.2, eval_every=0)
    checkpoints = Checkpoints(tmp_path, loop, CheckpointConfig(every_rounds=1, keep=keep), warn=lambda _: None)

    def look() -> None:
        if checkpoints.saved_round == loop.server.round:
            saved.append(loop.server.round)
        assert list_rounds(folder) == saved[::-1][:keep]
        if saved:
            assert_whole(folder)

    summary = loop.fit([checkpoints, AfterRound(look)])
    assert 10 < len(saved) < 25
    monkeypatch.undo()
    again = resumed(tmp_path, rounds=25, num_clients=12, participation=0.2, eval_every=0)
    assert again.server.round == saved[-1]
    assert fingerprint(again.fit()) == fingerprint(summary)


@pytest.mark.parametrize("problem", ["latest", "older"])
def test_nothing_is_removed_before_a_new_checkpoint_replaces_a_broken_one(problem, tmp_path):
    saved_run(tmp_path, rounds=4)
    folder = tmp_path / "checkpoints"
    (folder / f"0000000{4 if problem == 'latest' else 3}-server.safetensors").unlink()
    before = {path.name for path in folder.iterdir()}
    loop = new_loop(rounds=6)
    checkpoints = Checkpoints(tmp_path, loop, CheckpointConfig(every_rounds=6, every_minutes=0), warn=lambda _: None)
    good = resume(checkpoints, fallback=True)
    assert good == (3 if problem == "latest" else 4)
    assert {path.name for path in folder.iterdir()} == before, "it may still be repaired by hand"
    loop.fit([checkpoints])
    assert list_rounds(folder) == [6, good]
    assert_whole(folder)


def test_a_resumed_run_removes_what_a_kill_left(tmp_path):
    saved_run(tmp_path)
    folder = tmp_path / "checkpoints"
    for name in (".00000005-server.safetensors.tmp", "00000005-clients-1of2.safetensors", ".00000004.json.tmp"):
        (folder / name).write_bytes(b"half")
    (folder / "notes.txt").write_text("mine")
    resumed(tmp_path)
    (folder / "notes.txt").unlink()
    assert_whole(folder)
