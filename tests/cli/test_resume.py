"""`--resume` on the command line: continue a run, start or continue one, and all the mistakes one can make."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import socket
from functools import partial
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pfl_lightning.checkpoint.differences import refuse_differences
from pfl_lightning.checkpoint.marker import Marker, read_marker
from pfl_lightning.cli.fit import run
from pfl_lightning.cli.parser import build_parser, complete, parse
from pfl_lightning.cli.run_lock import RunLock
from pfl_lightning.foundation.errors import ConfigError
from tests.cli.test_fit import SMALL, _elsewhere, summary  # noqa: F401 (a fixture)
from tests.helpers.forked_fit import ForkedFit

JOB = [*SMALL, "--loop.rounds", "6", "--checkpoint.every_rounds", "1", "--fabric.devices", "1"]
SAME = ("model_sha256", "clients_sha256", "last", "best", "best_per_client_visits", "rounds", "up_bytes")


def rounds(path: Path) -> list[str]:
    return [row["round"] for row in csv.DictReader((path / "metrics.csv").open())]


def steps(path: Path) -> list[int]:
    return [event.step for event in EventAccumulator(str(path)).Reload().Scalars("accuracy/before")]


def same(one: Path, other: Path) -> bool:
    return all(summary(one)[key] == summary(other)[key] for key in SAME)


def test_a_run_goes_on_with_more_rounds_on_other_ranks_and_leaves_one_curve(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run([*JOB, "--run_dir", "whole"]) == 0
    assert run([*JOB, "--run_dir", "parts", "--loop.rounds", "4"]) == 0
    # a process that continued and was killed left a row of a round without a checkpoint, and half of another
    latest = (parts / "metrics.csv").read_text().splitlines()[-1]
    with (parts / "metrics.csv").open("a") as file:
        file.write("5" + latest[1:] + "\n6,half a r")
    assert run(["--resume", "parts", "--loop.rounds", "6", "--fabric.devices", "2"]) == 0
    assert same(whole, parts)
    assert rounds(parts) == ["1", "2", "3", "4", "5", "6"]
    assert steps(parts) == [1, 2, 3, 4, 5, 6]
    events = EventAccumulator(str(parts)).Reload()
    assert len(events.Images("data/partition")) == 1
    assert not list(tmp_path.rglob("*.tmp"))


def test_auto_starts_and_continues_and_a_finished_run_stays_as_it_is(tmp_path):
    words = [*JOB, "--resume", "auto", "--run_dir", "here"]
    assert run([*words, "--loop.rounds", "3"]) == 0
    assert run(words) == 0
    assert rounds(tmp_path / "here") == ["1", "2", "3", "4", "5", "6"]
    first = summary(tmp_path / "here")
    assert run(words) == 0
    assert all(summary(tmp_path / "here")[key] == first[key] for key in SAME)
    assert rounds(tmp_path / "here") == ["1", "2", "3", "4", "5", "6"]


def test_fewer_rounds_than_are_done_are_refused(tmp_path, capfd):
    assert run([*JOB, "--run_dir", "here", "--loop.rounds", "3"]) == 0
    before = (tmp_path / "here/config.yaml").read_text()
    capfd.readouterr()
    assert run(["--resume", "here", "--loop.rounds", "2"]) == 2
    assert (
        capfd.readouterr().err == "pfl-fit: error: loop.rounds: 2 is not allowed; the run has done 3 rounds already\n"
    )
    assert (tmp_path / "here/config.yaml").read_text() == before


def killed_before_its_first_checkpoint(run_dir: Path) -> None:
    """Make a finished run what a kill before its first checkpoint would have left."""
    for path in [*(run_dir / "checkpoints").iterdir(), run_dir / "summary.json"]:
        path.unlink()
    marker = read_marker(run_dir)
    assert marker is not None
    assert marker.has_checkpoint
    Marker(marker.config).write(run_dir)


def test_auto_starts_again_where_a_run_was_killed_before_its_first_checkpoint(tmp_path, capfd):
    here = tmp_path / "here"
    assert run([*JOB, "--run_dir", "here"]) == 0
    expected = summary(here)
    killed_before_its_first_checkpoint(here)
    capfd.readouterr()
    assert run(["--resume", "here"]) == 2
    line = "resume: the run in here has no checkpoint yet; start it again with its own command and --resume auto"
    assert capfd.readouterr().err == f"pfl-fit: error: {line}\n"
    assert run([*JOB, "--resume", "auto", "--run_dir", "here", "--seed", "3"]) == 2
    assert "started with another config: seed (was 0, now 3)" in capfd.readouterr().err
    assert rounds(here) == ["1", "2", "3", "4", "5", "6"], "nothing was touched"
    assert run([*JOB, "--resume", "auto", "--run_dir", "here"]) == 0
    assert all(summary(here)[key] == expected[key] for key in SAME)
    assert rounds(here) == ["1", "2", "3", "4", "5", "6"]
    assert steps(here) == [1, 2, 3, 4, 5, 6]
    assert len(EventAccumulator(str(here)).Reload().Images("data/partition")) == 1


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "run"
    assert run([*JOB, "--loop.rounds", "1", "--run_dir", str(path)]) == 0
    return path


@pytest.fixture
def done(finished, tmp_path):
    """A finished run of one round."""
    shutil.copytree(finished, tmp_path / "done")
    return tmp_path / "done"


OTHER = "resume: the run was started with another config"
REFUSED = {
    "--resume nowhere": "resume: there is no run in nowhere",
    "--resume auto": "resume: auto needs run_dir",
    "--resume done --run_dir other": "run_dir: other is not the resumed run",
    "--resume done --algorithm.quantile 0.5": f"{OTHER}: algorithm.quantile (was 0.995, now 0.5)",
    "--resume done --loop.batch_size 64 --seed 3": f"{OTHER}: loop.batch_size (was 256, now 64), seed (was 0, now 3)",
    "--resume done --report.masks true": f"{OTHER}: report.masks (was False, now True)",
    "--resume done --loop.rounds 0": "loop.rounds: 0 is not allowed",
    "--resume done --algorithm FedAvg": f"{OTHER}: algorithm (was ",
    "--run_dir done": "run_dir: done is not empty; use a new or empty directory, or continue ",
    "--resume auto --run_dir full": "run_dir: full has files in it (file) but no run.json, so it is not a run",
    "--resume auto --run_dir full/file": "run_dir: full/file is a file",
    "--checkpoint.keep -1": "checkpoint.keep: -1 is not allowed; use a whole number >= 0",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_resumed_gets_one_line(words, done, tmp_path, capfd):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("mine")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    capfd.readouterr()
    start = [] if "--resume done" in words else JOB
    assert run([*start, *words.split()]) == 2
    err = capfd.readouterr().err
    assert err.startswith(f"pfl-fit: error: {REFUSED[words]}"), err
    assert err.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_broken_checkpoint_gets_one_line_and_auto_uses_the_older_one(tmp_path, capfd):
    assert run([*JOB, "--run_dir", "here"]) == 0
    expected = summary(tmp_path / "here")
    latest = tmp_path / "here/checkpoints/00000006-server.safetensors"
    latest.write_bytes(b"x" + latest.read_bytes()[1:])
    capfd.readouterr()
    assert run(["--resume", "here"]) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert "checkpoint of round 6 in here cannot be used: 00000006-server.safetensors is damaged" in err
    assert "the one of round 5 is good, use it with --resume auto --run_dir here" in err
    assert run([*JOB, "--resume", "auto", "--run_dir", "here", "--fabric.devices", "2"]) == 0
    out, err = capfd.readouterr()
    assert err.count("\n") == 1
    assert "warning" in err
    assert "continuing from round 5" in err
    assert "continued after round 5" in out
    assert all(summary(tmp_path / "here")[key] == expected[key] for key in SAME)


DAMAGED_FILES = ("config.yaml", "run.json", "partition.safetensors", "metrics.csv", "summary.json", "events.*.pfl")


@pytest.mark.parametrize("pattern", DAMAGED_FILES)
@pytest.mark.parametrize("damage", ["flip", "truncate", "delete"])
def test_other_files_of_a_run_are_restored(pattern, damage, done, capfd):
    (path,) = done.glob(pattern)
    before = {key: summary(done)[key] for key in SAME}
    rows = (done / "metrics.csv").read_text()
    content = path.read_bytes()
    middle = len(content) // 2
    if damage == "delete":
        path.unlink()
    else:
        path.write_bytes(content[:middle] + (b"" if damage == "truncate" else b"\xff" + content[middle + 1 :]))
    capfd.readouterr()
    assert run(["--resume", "done"]) == 0
    err = capfd.readouterr().err
    told = {"metrics.csv": "its rows were restored", "events.*.pfl": "its curves were written again from metrics.csv"}
    assert err.count("\n") == (pattern in told)
    assert told.get(pattern, "") in err
    assert {key: summary(done)[key] for key in SAME} == before
    assert (done / "metrics.csv").read_text() == rows
    assert steps(done) == [1]
    assert read_marker(done) is not None


def test_every_manifest_broken_gets_one_line(done, capfd):
    (done / "checkpoints/00000001.json").write_text("{")
    capfd.readouterr()
    for words in (["--resume", "done"], [*JOB, "--resume", "auto", "--run_dir", "done"]):
        assert run(words) == 2
        err = capfd.readouterr().err
        assert "round 1 in done cannot be used: 00000001.json is damaged; no other checkpoint is good" in err
        assert err.count("\n") == 1


@pytest.mark.parametrize("devices", ["1", "2"])
def test_two_processes_on_one_directory(devices, done, capfd):
    lock = RunLock(done)
    capfd.readouterr()
    assert run(["--resume", "done", "--loop.rounds", "2", "--fabric.devices", devices]) == 2
    holder = f"process {os.getpid()} on {socket.gethostname()}"
    line = f"run_dir: done is in use by {holder}; wait until it ends, or stop it first"
    assert capfd.readouterr().err == f"pfl-fit: error: {line}\n"
    lock.release()
    assert run(["--resume", "done", "--loop.rounds", "2", "--fabric.devices", devices]) == 0


@pytest.mark.parametrize(("number", "devices"), [(signal.SIGTERM, "2"), (signal.SIGUSR1, "1")])
def test_a_signal_saves_the_last_whole_round_and_says_how_to_go_on(number, devices, tmp_path):
    words = [*SMALL, "--loop.rounds", "100000", "--fabric.devices", devices, "--run_dir", "cut"]
    with ForkedFit(words) as process:
        for line in process.stdout:
            if line.startswith("[") and "all" in line:
                process.send_signal(number)
                break
        rest = process.stdout.read()
        assert process.wait() == 128 + number
    assert "Interrupted in round" in rest
    assert "resume:  pfl-fit --resume cut" in rest
    assert "Traceback" not in rest
    last = rounds(tmp_path / "cut")[-1]
    assert (tmp_path / f"cut/checkpoints/{int(last):08d}.json").exists()
    assert run(["--resume", "cut", "--loop.rounds", str(int(last) + 1), "--fabric.devices", "1"]) == 0
    assert json.loads((tmp_path / "cut/summary.json").read_text())["rounds"] == int(last) + 1


def test_one_rank_that_is_killed_ends_the_run_with_one_line(tmp_path):
    words = [*SMALL, "--loop.rounds", "100000", "--fabric.devices", "2", "--run_dir", "cut"]
    with ForkedFit(words) as process:
        for line in process.stdout:
            if line.startswith("[") and "all" in line:
                children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                os.kill(int(children[1]), signal.SIGKILL)
                break
        rest = process.stdout.read()
        assert process.wait() == 1
    errors = [line for line in rest.splitlines() if not line.startswith("[")]
    assert errors == [
        "pfl-fit: error: rank 1 was ended by SIGKILL; pfl-fit --resume cut continues from the last checkpoint"
    ]
    assert (
        run(["--resume", "cut", "--loop.rounds", str(len(rounds(tmp_path / "cut")) + 1), "--fabric.devices", "1"]) == 0
    )


def test_a_config_of_an_earlier_version_fits_where_new_settings_have_their_defaults():
    parser = build_parser()
    now = parser.dump(parse(parser, JOB))
    old = re.sub(r"  (clients_per_step|ranks_per_client): 1\n", "", now)
    assert old != now
    refuse_differences(old, now, partial(complete, parser))
    other = parser.dump(parse(build_parser(), [*JOB, "--loop.ranks_per_client", "2"]))
    with pytest.raises(ConfigError, match=r"loop\.ranks_per_client \(was 1, now 2\)"):
        refuse_differences(old, other, partial(complete, parser))
