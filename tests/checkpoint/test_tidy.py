"""What is removed, and what must never be."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import pfl_lightning.checkpoint.checkpoints as module
from pfl_lightning.checkpoint import CheckpointConfig, Checkpoints
from pfl_lightning.checkpoint.manifest import Manifest, Unreadable, list_rounds, manifest_path
from pfl_lightning.checkpoint.tidy import remove_old
from pfl_lightning.loop import FederatedFabricLoop
from tests.checkpoint.runs import FullDisk, assert_whole, new_loop, resumed, saved_run
from tests.toy import fingerprint


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_every_kept_checkpoint_is_whole_after_every_round_whatever_fails(keep, tmp_path, monkeypatch):
    """Files are given up, joined and removed over 25 rounds in which every fifth file cannot be written."""
    count = itertools.count(1)
    monkeypatch.setattr(module, "MOST_FILES", 3)
    monkeypatch.setattr(module, "write_part", lambda *words: FullDisk(next(count) % 5)(*words))
    folder, saved = tmp_path / "checkpoints", []
    loop = new_loop(rounds=25, num_clients=12, participation=0.2, eval_every=0)
    checkpoints = Checkpoints(tmp_path, loop, CheckpointConfig(every_rounds=1, keep=keep), warn=lambda _: None)

    def look(loop: FederatedFabricLoop) -> None:
        if checkpoints.saved_round == loop.server.round:
            saved.append(loop.server.round)
        assert list_rounds(folder) == saved[::-1][:keep]
        if saved:
            assert_whole(folder)

    loop.on_round_end = [checkpoints.after_round, look]
    summary = loop.fit()
    assert 10 < len(saved) < 25
    monkeypatch.undo()
    again = resumed(tmp_path, rounds=25, num_clients=12, participation=0.2, eval_every=0)
    assert again.server.round == saved[-1]
    assert fingerprint(again.fit()) == fingerprint(summary)


def test_nothing_is_removed_while_a_manifest_cannot_be_read(tmp_path, monkeypatch):
    """A network disk that does not answer for a moment: what the manifest names may be all that is left one day."""
    saved_run(tmp_path, rounds=4)
    folder = tmp_path / "checkpoints"
    before = {path.name for path in folder.iterdir()}
    latest = Manifest.read(manifest_path(folder, 4))

    def fail(path: Path) -> None:
        raise Unreadable("not now")

    monkeypatch.setattr(Manifest, "read", fail)
    remove_old(folder, latest, keep=2)
    assert {path.name for path in folder.iterdir()} == before
    remove_old(folder, latest, keep=1)
    assert list_rounds(folder) == [4], "that one is known without reading"
    monkeypatch.undo()
    assert_whole(folder)


def test_what_a_kill_left_is_removed_when_the_run_goes_on(tmp_path):
    saved_run(tmp_path)
    folder = tmp_path / "checkpoints"
    for name in (".00000005-server.safetensors.tmp", "00000005-clients-1of2.safetensors", ".00000004.json.tmp"):
        (folder / name).write_bytes(b"half")
    (folder / "notes.txt").write_text("mine")
    resumed(tmp_path)
    (folder / "notes.txt").unlink()
    assert_whole(folder)
