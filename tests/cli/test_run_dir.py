"""Run directories: nothing of the user's is overwritten, runs do not collide, and no kill leaves a dead end."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import pfl_lightning.cli.run_dir as module
from pfl_lightning.cli.fit import run
from pfl_lightning.cli.run_dir import RunDirectory
from pfl_lightning.cli.run_lock import LOCK_NAME, RunLock
from pfl_lightning.foundation.errors import ConfigError
from tests.cli.test_fit import SMALL, _elsewhere, summary  # noqa: F401 (a fixture)
from tests.cli.test_resume import rounds
from tools.faults.process import Run

JOB = [*SMALL, "--loop.rounds", "2", "--fabric.devices", "1"]
OTHER = ["--algorithm", "FedAvg", "--seed", "5", "--loop.rounds", "1", "--fabric.devices", "1"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "run"
    assert run([*JOB, "--run_dir", str(path)]) == 0
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refused(words: list[str], capfd) -> str:
    """The one line of a command that is refused and changes nothing."""
    before = contents(Path())
    capfd.readouterr()
    assert run(words) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert contents(Path()) == before
    return err.removeprefix("pfl-fit: error: ").rstrip("\n")


@pytest.mark.parametrize("command", [JOB, OTHER])
@pytest.mark.parametrize("how", ["folder", "content"])
def test_a_finished_run_without_checkpoints_is_never_overwritten(command, how, finished, tmp_path, capfd):
    shutil.copytree(finished, "old")
    if how == "folder":
        shutil.rmtree("old/checkpoints")
    else:
        for path in Path("old/checkpoints").iterdir():
            path.unlink()
    line = refused([*command, "--resume", "auto", "--run_dir", "old"], capfd)
    assert line.startswith("run_dir: old is a finished run without checkpoints, which would be overwritten; use a new")
    line = refused(["--resume", "old"], capfd)
    assert line.startswith("resume: old is a finished run without checkpoints")


def test_an_unfinished_run_whose_checkpoints_were_removed_is_never_overwritten(finished, capfd):
    shutil.copytree(finished, "old")
    shutil.rmtree("old/checkpoints")
    Path("old/summary.json").unlink()
    line = refused([*JOB, "--resume", "auto", "--run_dir", "old"], capfd)
    assert line.startswith("run_dir: the checkpoints of old were removed, so its run cannot be continued; use a new")


@pytest.mark.parametrize("resume", [[], ["--resume", "auto"]])
@pytest.mark.parametrize("names", [["config.yaml", "metrics.csv", "summary.json"], ["run.json"], ["checkpoints/1"]])
def test_a_directory_with_files_of_the_user_is_refused(resume, names, capfd):
    for name in names:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("{}")
    line = refused([*JOB, *resume, "--run_dir", "."], capfd)
    assert line.startswith("run_dir: . ")
    assert "use a new or empty directory" in line
    if resume and len(names) == 3:
        assert line.startswith("run_dir: . has files in it (config.yaml, metrics.csv, summary.json) but no run.json")


def test_a_run_without_checkpoints_says_so(tmp_path, capfd):
    words = [*JOB, "--checkpoint.keep", "0", "--resume", "auto", "--run_dir", "here"]
    assert run(words) == 0
    assert not (tmp_path / "here/checkpoints").exists()
    assert rounds(tmp_path / "here") == ["1", "2"]
    assert refused(words, capfd).startswith("run_dir: here is a finished run without checkpoints")
    Path("here/summary.json").unlink()  # as if it had been killed
    assert refused(["--resume", "here"], capfd).startswith("resume: the run in here has no checkpoint yet; start it")
    assert run(words) == 0
    assert rounds(tmp_path / "here") == ["1", "2"]


@pytest.mark.parametrize("left", [[], [".lock"], [".lock", ".run.json.tmp"]])
@pytest.mark.parametrize("resume", [[], ["--resume", "auto"]])
def test_a_kill_before_the_marker_is_no_dead_end(left, resume, tmp_path):
    (tmp_path / "here").mkdir()
    for name in left:
        (tmp_path / "here" / name).write_bytes(b"half")
    assert run([*JOB, "--loop.rounds", "1", *resume, "--run_dir", "here"]) == 0
    assert not list((tmp_path / "here").glob(".*.tmp"))


@pytest.mark.parametrize("name", ["config.yaml", "partition.safetensors", "metrics.csv", "summary.json", "run.json"])
def test_what_a_kill_left_is_removed_when_the_run_is_resumed(name, finished, tmp_path):
    shutil.copytree(finished, "here")
    (tmp_path / f"here/.{name}.tmp").write_bytes(b"half")
    assert run(["--resume", "here"]) == 0
    assert {path.name for path in (tmp_path / "here").glob(".*")} == {LOCK_NAME}


def test_four_runs_that_start_together_all_run(tmp_path):
    processes = [Run([*JOB, "--loop.rounds", "1", "--seed", str(seed)], tmp_path / f"{seed}.log") for seed in range(4)]
    assert [process.wait() for process in processes] == [0] * 4, [process.log.read_text() for process in processes]
    runs = list((tmp_path / "runs/fedobp_fashion10k").iterdir())
    assert sorted(summary(path)["seed"] for path in runs) == [0, 1, 2, 3]


def test_default_directories_of_the_same_second_are_numbered(tmp_path, monkeypatch):
    class Clock(module.datetime):  # type: ignore[misc]
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 31, 9, 0, 0)

    monkeypatch.setattr(module, "datetime", Clock)
    directories = [RunDirectory(None, "mine") for _ in range(3)]
    for directory in directories:
        directory.claim()
    names = [directory.path.name for directory in directories]
    assert names == ["2026-01-31_09-00-00", "2026-01-31_09-00-00-1", "2026-01-31_09-00-00-2"]


def test_a_run_that_is_refused_after_its_launch_leaves_no_directory(tmp_path, capfd):
    for words in ([], ["--run_dir", "deep/er/run"], ["--resume", "auto", "--run_dir", "deep/er/run"]):
        line = refused([*JOB, *words, "--algorithm", "FedBN", "--fabric.devices", "2"], capfd)
        assert line.startswith("task.net: FedBN needs ")
        assert list(tmp_path.iterdir()) == []


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path, capfd):
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / LOCK_NAME).symlink_to(tmp_path / "mine")
    with pytest.raises(ConfigError, match=r"run_dir: here cannot be written: \.lock is a link"):
        RunLock(Path("here"))
    assert (tmp_path / "mine").read_text() == "precious"


def test_the_holder_of_a_lock_cannot_send_control_characters(tmp_path):
    lock = RunLock(tmp_path)
    (tmp_path / LOCK_NAME).write_bytes(b"\x1b]0;evil\x07 me")
    with pytest.raises(ConfigError, match=r"is in use by \]0;evil me; wait"):
        RunLock(tmp_path)
    lock.release()


def test_a_directory_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    for path in (tmp_path / "new/run", tmp_path):
        with pytest.raises(ConfigError, match=r"cannot be created: .*: Permission denied"):
            module.check_writable(path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot be created: .*/file: Not a directory"):
        module.check_writable(tmp_path / "file/run")


def test_only_the_first_process_creates_the_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("RANK", "1")
    with RunDirectory(None, "mine"):
        assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("RANK", "0")
    with RunDirectory(None, "mine") as directory:
        assert directory.path.is_dir()
    assert list(tmp_path.iterdir()) == [], "nothing was written, so nothing stays"


def test_colleagues_can_read_a_run_in_a_shared_directory(tmp_path):
    before = os.umask(0o007)
    try:
        assert run([*JOB, "--loop.rounds", "1", "--run_dir", "here", "--report.masks", "true"]) == 0
    finally:
        os.umask(before)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (tmp_path / "here").rglob("*") if path.is_file()}
    assert set(modes.values()) == {"0o660"}, modes
    assert "masks.safetensors" in modes
