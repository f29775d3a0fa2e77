"""Job arrays: what is submitted, what a task runs, what is still in the queue. SLURM's commands are scripts here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pfl_lightning.compare import slurm_array
from pfl_lightning.compare.comparison import Comparison
from pfl_lightning.compare.session import Session
from pfl_lightning.foundation.errors import ConfigError, RunError
from tests.helpers.comparisons import ToyResolver, experiment, write_run

SBATCH = """#!/usr/bin/env bash
printf '%s\\n' "$@" > "$SPY/sbatch-$(ls "$SPY" | grep -c ^sbatch)"
echo "$PYTHONPATH" > "$SPY/path"
echo $((100 + $(ls "$SPY" | grep -c ^sbatch)))
"""
SQUEUE = """#!/usr/bin/env bash
cat "$SPY/queue" 2>/dev/null || true
"""


@pytest.fixture
def spy(tmp_path, monkeypatch) -> Path:
    """A folder in which SLURM's commands note how they were called."""
    folder, programs = tmp_path / "spy", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    for name, text in {"sbatch": SBATCH, "squeue": SQUEUE}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("SPY", str(folder))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return folder


@pytest.fixture
def session(tmp_path) -> Session:
    return Session(Comparison(experiment(seeds=[0, 1]), ToyResolver()), tmp_path / "out")


def submit(session: Session, **changes):
    written = session.folder / "configs"
    written.mkdir(parents=True, exist_ok=True)

    def write(cell):
        (written / f"{cell.id}.yaml").write_text("# a config")
        return written / f"{cell.id}.yaml"

    env = {**os.environ, "PYTHONPATH": "/mine"}
    return session.submit(write, "toy", changes.get("ranks", 1), changes.get("options", ""), env)


def tasks(session: Session, array: int = 1) -> list[list[str]]:
    text = (session.folder / f"slurm/array-{array}/tasks.tsv").read_text()
    return [line.split("\t") for line in text.splitlines()]


def test_missing_cells_become_one_array(spy, session):
    submit(session, ranks=2, options="--partition=main --time='01:00:00'")
    words = (spy / "sbatch-0").read_text().splitlines()
    assert words[:5] == ["--parsable", "--array=0-7", "--job-name=toy", "--nodes=1", "--ntasks-per-node=2"]
    assert "--partition=main" in words
    assert "--time=01:00:00" in words
    assert words[-1].endswith("tools/slurm/pfl_fit.sbatch")
    assert Path(words[-1]).is_file()
    assert f"--export=ALL,PFL_FIT={session.folder.resolve()}/slurm/array-1/fit.sh" in words
    assert (spy / "path").read_text() == "/mine\n"
    assert len(tasks(session)) == 8


def test_a_task_trains_its_own_cell(spy, session, tmp_path, monkeypatch):
    """The wrapper adds the cell's config and directory after the words of the sbatch script, so that they win."""
    python = tmp_path / "python"
    python.write_text("#!/usr/bin/env bash\nprintf '%s\\n' \"$@\"\n")
    python.chmod(0o755)
    monkeypatch.setattr(slurm_array.sys, "executable", str(python))
    submit(session)
    wrapper = session.folder / "slurm/array-1/fit.sh"
    for index, (config, run_dir) in enumerate(tasks(session)):
        env = {**os.environ, "SLURM_ARRAY_TASK_ID": str(index)}
        done = subprocess.run([wrapper, "--run_dir", "theirs"], env=env, capture_output=True, text=True, check=True)
        expected = ["-m", "pfl_lightning.cli", "--run_dir", "theirs", "--config", config, "--run_dir", run_dir]
        assert done.stdout.splitlines() == expected
        assert Path(config).is_file()


def test_cells_in_the_queue_are_not_submitted_again(spy, session):
    (spy / "queue").write_text("101_2\n101_5\n999_0\n")
    submit(session)
    assert len(session.queued) == 2
    again = Session(session.comparison, session.folder)
    stage = again.refresh()
    queued = [index for index, cell in enumerate(stage.cells) if cell in again.queued]
    assert queued == [2, 5]
    submit(again)
    assert len(tasks(again, 2)) == 6
    assert (spy / "sbatch-1").exists()


def test_what_came_back_is_picked_up(spy, session):
    (spy / "queue").write_text("".join(f"101_{n}\n" for n in range(8)))
    submit(session)
    stage = session.refresh()
    cells = list(stage.cells.values())
    for cell, (_, run_dir) in zip(cells[:3], tasks(session), strict=False):
        write_run(Path(run_dir), cell)
    (spy / "queue").write_text("101_6\n101_7\n")
    again = Session(session.comparison, session.folder)
    stage = again.refresh()
    assert len(again.results.finished) == 3
    assert len(again.missing(stage)) == 3
    submit(again)
    assert [Path(run_dir).name for _, run_dir in tasks(again, 2)] == [
        Path(run_dir).name for _, run_dir in tasks(session)[3:6]
    ]


def test_a_cell_that_has_just_finished_no_longer_waits(spy, session):
    (spy / "queue").write_text("101_0\n101_1\n")
    submit(session)
    cells = list(session.refresh().cells.values())
    write_run(Path(tasks(session)[0][1]), cells[0])
    again = Session(session.comparison, session.folder)
    again.refresh()
    assert list(again.queued) == [cells[1].id]


def test_an_unfinished_run_is_continued_where_it_is(spy, session):
    cells = list(session.refresh().cells.values())
    path = write_run(session.results.folder / "anything", cells[0], rounds=2)
    submit(session)
    assert tasks(session)[0][1] == str(path.resolve())


def test_large_arrays_are_split(spy, session, monkeypatch):
    monkeypatch.setattr(slurm_array, "LARGEST_ARRAY", 3)
    submit(session)
    assert [len(tasks(session, n)) for n in (1, 2, 3)] == [3, 3, 2]
    record = json.loads((session.folder / "slurm/submitted.json").read_text())
    assert [entry["job"] for entry in record] == ["101", "102", "103"]


def test_without_slurm_there_is_one_line(session, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="slurm: there is no sbatch here"):
        submit(session)


def test_a_refusal_of_slurm_is_passed_on(spy, session, tmp_path):
    (tmp_path / "bin/sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition' >&2\nexit 1\n")
    with pytest.raises(RunError, match="sbatch failed: sbatch: error: invalid partition"):
        submit(session)
    assert not (session.folder / "slurm/submitted.json").exists()


def test_jobs_that_nobody_can_ask_about_are_not_run_twice(spy, session, tmp_path):
    (spy / "queue").write_text("101_0\n")
    submit(session)
    (tmp_path / "bin/squeue").write_text("#!/bin/sh\necho 'controller is down' >&2\nexit 1\n")
    with pytest.raises(RunError, match="squeue failed: controller is down"):
        Session(session.comparison, session.folder).refresh()


def test_python_is_this_one(spy, session):
    submit(session)
    assert sys.executable in (session.folder / "slurm/array-1/fit.sh").read_text()
