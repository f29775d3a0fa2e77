"""Real child processes: their end, their output, their environment."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import yaml

from pfl_lightning.compare.children import (
    FitProcess,
    child_environment,
    fit_command,
    gpus_of_slot,
    write_config,
)
from pfl_lightning.compare.comparison import Comparison
from pfl_lightning.compare.identity import identity
from tests.helpers.comparisons import ToyResolver, experiment

PATIENT = """
import pathlib, signal, sys, time
def stop(number, frame):
    print("saved", flush=True)
    sys.exit(130)
signal.signal(signal.SIGINT, stop)
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""


def wait(condition):
    end = time.monotonic() + 30
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def start(tmp_path, code):
    ready = tmp_path / "ready"
    child = FitProcess([sys.executable, "-c", code, str(ready)], tmp_path / "log", child_environment({}, None, []))
    return child, ready


def test_a_child_saves_and_ends_when_it_is_interrupted(tmp_path):
    child, ready = start(tmp_path, PATIENT)
    wait(ready.exists)
    assert child.poll() is None
    child.interrupt()
    assert wait(lambda: child.poll() is not None)
    assert child.poll() == 130
    assert (tmp_path / "log").read_text() == "saved\n"
    child.interrupt()  # it is gone: nothing happens
    child.kill()


def test_a_child_that_does_not_listen_is_killed_with_its_own_children(tmp_path):
    code = """
import pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path(sys.argv[1]).write_text(str(rank.pid) + "\\n")
time.sleep(60)
"""
    child, ready = start(tmp_path, code)
    rank = int(wait(lambda: ready.exists() and ready.read_text().strip()))
    child.interrupt()
    child.kill()
    assert child.poll() == -signal.SIGKILL

    def gone():
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(rank)], capture_output=True, text=True).stdout.strip()
        return not state or state.startswith("Z")

    assert wait(gone)


def test_the_complaint_is_the_error_else_the_last_line(tmp_path):
    child, _ = start(tmp_path, "print('pfl-fit: error: lr: too high'); print('bye')")
    wait(lambda: child.poll() is not None)
    assert child.complaint() == f"lr: too high (see {tmp_path / 'log'})"
    for code, words in {"print('Killed')": "Killed", "": "it said nothing"}.items():
        (tmp_path / "log").unlink()
        child, _ = start(tmp_path, code)
        wait(lambda child=child: child.poll() is not None)
        assert child.complaint() == f"{words} (see {tmp_path / 'log'})"


def test_the_output_of_earlier_stretches_is_kept(tmp_path):
    for word in ("one", "two"):
        child, _ = start(tmp_path, f"print('{word}')")
        wait(lambda child=child: child.poll() is not None)
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


def test_children_know_nothing_of_a_slurm_job_around_them():
    env = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8", "SRUN_DEBUG": "3", "HOME": "/h", "PYTHONPATH": "/p"}
    assert child_environment(env, None, ["/mine"]) == {"HOME": "/h", "PYTHONPATH": "/mine:/p"}
    assert child_environment({}, ["2", "3"], []) == {"CUDA_VISIBLE_DEVICES": "2,3"}


def test_every_slot_has_gpus_of_its_own():
    assert [gpus_of_slot(slot, 2, 4, None) for slot in range(2)] == [["0", "1"], ["2", "3"]]
    assert gpus_of_slot(1, 1, 2, "5,GPU-abc") == ["GPU-abc"]


def test_the_config_of_a_child_has_the_identity_of_its_cell(tmp_path):
    for cell in Comparison(experiment(seeds=[0, 1]), ToyResolver()).stage({}).cells.values():
        path = write_config(cell, tmp_path)
        config = yaml.safe_load(path.read_text())
        assert identity(config) == cell.id
        assert "seed" in config["data"]["init_args"]
        assert not {"run_dir", "resume"} & config.keys()


def test_the_command_is_pfl_fit(tmp_path):
    words = fit_command(tmp_path / "c.yaml", tmp_path / "run", 2)
    assert words[:3] == [sys.executable, "-m", "pfl_lightning.cli"]
    assert words[3:] == ["--config", f"{tmp_path}/c.yaml", "--run_dir", f"{tmp_path}/run", "--resume", "auto",
                         "--fabric.devices", "2", "--fabric.num_nodes", "1"]  # fmt: skip
    done = subprocess.run([*words[:3], "--help"], capture_output=True, text=True, check=True)
    assert "pfl-fit" in done.stdout
