"""Full and read-only disks: real ones, small and in memory, which only root can make."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from pfl_lightning.checkpoint.manifest import list_rounds
from pfl_lightning.cli.fit import run
from tests.cli.test_fit import _elsewhere, summary  # noqa: F401 (a fixture)
from tests.cli.test_resume import JOB, SAME, rounds, steps
from tests.helpers.forked_fit import ForkedFit

ROUNDS = 40
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")


@pytest.fixture
def disk(tmp_path):
    """A disk of 1 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", path], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Fill a disk until `leave` bytes are free."""
    path = disk / "filler"
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    path.write_bytes(bytes(max(0, free - leave)))
    return path


@pytest.fixture(scope="module")
def run_with_space(tmp_path_factory):
    """A run of so many rounds that has space."""

    @cache
    def make(rounds: int) -> Path:
        path = tmp_path_factory.mktemp("whole") / "run"
        assert run([*JOB, "--run_dir", str(path), "--loop.rounds", str(rounds)]) == 0
        return path

    return make


@pytest.fixture
def whole(run_with_space):
    """A run that has space."""
    return run_with_space(ROUNDS)


@pytest.mark.parametrize(("leave", "last"), [(0, 5), (65536, 5), (131072, ROUNDS)])
def test_a_full_disk_ends_with_one_line_and_the_run_goes_on_when_there_is_space(leave, last, disk, run_with_space):
    """So little is left that a checkpoint, metrics.csv or TensorBoard fails first: resumed, nothing is missing."""
    assert run([*JOB, "--run_dir", "disk/run", "--loop.rounds", "2"]) == 0
    filler = fill(disk, leave)
    with ForkedFit([*JOB, "--resume", "disk/run", "--loop.rounds", str(last)], apart=True) as process:
        err = process.communicate()[1]
    assert process.returncode == 1, err
    lines = err.splitlines()
    assert "No space left on device" in lines[-1] or "the disk is full" in lines[-1]
    assert all(line.startswith("pfl-fit: ") for line in lines)
    assert len(lines) <= 2, "a warning about a checkpoint, then the error"
    filler.unlink()
    assert run(["--resume", "disk/run", "--loop.rounds", str(last)]) == 0
    assert all(summary(disk / "run")[key] == summary(run_with_space(last))[key] for key in SAME)
    assert rounds(disk / "run") == [str(n) for n in range(1, last + 1)]
    assert steps(disk / "run") == list(range(1, last + 1))
    assert not list(disk.rglob("*.tmp"))


def test_a_full_disk_for_checkpoints_only_does_not_stop_the_training(disk, tmp_path, capfd):
    assert run([*JOB, "--run_dir", "run", "--loop.rounds", "2"]) == 0
    shutil.copytree("run/checkpoints", disk, dirs_exist_ok=True)
    shutil.rmtree("run/checkpoints")
    Path("run/checkpoints").symlink_to(disk)
    filler = fill(disk, 0)
    words = ["--resume", "run", "--loop.rounds", "6"]
    capfd.readouterr()
    assert run(words) == 1, "the last checkpoint, at the end, fails too"
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(
        "pfl-fit: warning: the checkpoint of round 3 cannot be written to run/checkpoints: No space"
    )
    assert lines[1].startswith("pfl-fit: error: the checkpoint of round 6 cannot be written")
    assert summary(tmp_path / "run")["rounds"] == 6, "the results are there"
    filler.unlink()
    assert run(words) == 0
    assert rounds(tmp_path / "run") == [str(n) for n in range(1, 7)]


@pytest.fixture
def on_another_disk(disk):
    """Move a file to another disk, where it stays under its path until the test calls `bring_back`."""
    moved: list[tuple[Path, Path]] = []

    def move(path: Path, target: Path) -> None:
        shutil.copy(path, target)
        subprocess.run(["mount", "--bind", target, path], check=True)
        moved.append((path.absolute(), target.absolute()))

    def bring_back() -> None:
        for path, target in moved:
            subprocess.run(["umount", "-l", path], check=True)
            shutil.copy(target, path)
        moved.clear()

    yield move, bring_back
    bring_back()


def assert_ends_with_one_line_and_goes_on(run_dir: Path, whole: Path, make_space: Callable[[], None]) -> None:
    words = [*JOB, "--loop.rounds", str(ROUNDS), "--resume", "auto", "--run_dir", str(run_dir)]
    with ForkedFit(words, apart=True) as process:
        err = process.communicate()[1]
    assert process.returncode == 1, err
    *warnings, error = err.splitlines()
    assert error.startswith("pfl-fit: error: cannot write "), err
    assert "No space left on device" in error or "the disk is full" in error
    assert len(warnings) <= 1
    assert all(line.startswith("pfl-fit: warning: the checkpoint of round ") for line in warnings)
    done = len(rounds(run_dir))
    assert 1 < done < ROUNDS, "it failed in the middle"
    # every round has a checkpoint, except the last one and one that failed with a warning
    assert done - 1 - len(warnings) <= max(list_rounds(run_dir / "checkpoints")) <= done
    make_space()
    assert run(words) == 0
    assert all(summary(run_dir)[key] == summary(whole)[key] for key in SAME)
    assert rounds(run_dir) == [str(n) for n in range(1, ROUNDS + 1)]
    assert steps(run_dir) == list(range(1, ROUNDS + 1))


def test_a_full_disk_for_metrics_only(disk, whole, on_another_disk):
    move, bring_back = on_another_disk
    assert run([*JOB, "--run_dir", "run", "--loop.rounds", "1"]) == 0
    move(Path("run/metrics.csv"), disk / "metrics.csv")
    fill(disk, 8192)
    assert_ends_with_one_line_and_goes_on(Path("run"), whole, bring_back)


def test_a_full_disk_for_tensorboard_and_small_tables(disk, whole, on_another_disk, tmp_path):
    """Checkpoints and metrics.csv have space, all other files of the run directory do not."""
    move, bring_back = on_another_disk
    assert run([*JOB, "--run_dir", "disk/run", "--loop.rounds", "1"]) == 0
    move(disk / "run/metrics.csv", tmp_path / "metrics.csv")
    shutil.move(disk / "run/checkpoints", tmp_path / "checkpoints")
    (disk / "run/checkpoints").symlink_to(tmp_path / "checkpoints")
    filler = fill(disk, 86016)

    def make_space() -> None:
        filler.unlink()
        bring_back()

    assert_ends_with_one_line_and_goes_on(disk / "run", whole, make_space)


def test_a_read_only_disk_is_refused(disk, capfd):
    assert run([*JOB, "--run_dir", "disk/run", "--loop.rounds", "1"]) == 0
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    for words in (["--run_dir", "disk/new"], ["--resume", "auto", "--run_dir", "disk/run"]):
        capfd.readouterr()
        assert run([*JOB, *words]) == 2
        err = capfd.readouterr().err
        assert err.startswith("pfl-fit: error: run_dir: disk/")
        assert "Read-only file system" in err
        assert err.count("\n") == 1
