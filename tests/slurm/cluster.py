"""A real SLURM of two nodes for the tests, and jobs on it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.slurm.patient import SLOW

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools/slurm"
PATIENCE = 240.0


def wait_for(what: str, condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"waited {PATIENCE:.0f} s for {what}")
        time.sleep(0.1)
    return found


class Cluster:
    """Started when made; `stop` ends exactly what was started."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pfl-slurm-"))
        self.slow = self.folder / "slow"
        self.port = str(_free_ports())
        self.problem = self._up()
        self.env = {
            **os.environ,
            "SLURM_CONF": str(self.folder / "etc/slurm.conf"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin",
            "PYTHONPATH": str(ROOT),
            SLOW: str(self.slow),
        }

    def stop(self) -> None:
        subprocess.run([TOOLS / "down.sh", self.folder], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def restart(self, node: str) -> None:
        """Start the node's daemon again, as after a repair: it forgets what it was doing, and reports for work."""
        path = self.folder / f"run/slurmd-{node}.id"
        os.kill(int(path.read_text().split()[0]), signal.SIGKILL)
        path.unlink()
        assert not (problem := self._up()), problem

    def _up(self) -> str | None:
        """Start what is not running; what is wrong with it."""
        env = {**os.environ, "SLURM_BASE_PORT": self.port}
        done = subprocess.run([TOOLS / "up.sh", self.folder], capture_output=True, text=True, env=env)
        return done.stderr.strip() if done.returncode else None

    def hurry(self) -> None:
        """Let jobs run at full speed from now on."""
        self.slow.unlink()

    def call(self, *words: str | Path) -> str:
        done = subprocess.run(words, capture_output=True, text=True, env=self.env, cwd=self.folder)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout.strip()

    def submit(self, run_dir: Path, words: list[str], *options: str) -> Job:
        log = run_dir.with_suffix(".out")
        command = ["sbatch", "--parsable", f"--output={log}", "--ntasks-per-node=1", *options, TOOLS / "pfl_fit.sbatch"]
        return Job(self, self.call(*command, *words, "--run_dir", str(run_dir)), run_dir, log)


class Job:
    """A submitted run."""

    def __init__(self, cluster: Cluster, number: str, run_dir: Path, log: Path) -> None:
        self.cluster, self.number, self.run_dir, self.log = cluster, number, run_dir, log

    def fact(self, name: str) -> str:
        found = re.search(rf"\b{name}=(\S+)", self.cluster.call("scontrol", "show", "job", "-o", self.number))
        return found[1] if found else ""

    def rows(self) -> int:
        path = self.run_dir / "metrics.csv"
        return path.read_text().count("\n") - 1 if path.exists() else 0

    def await_rows(self, count: int) -> None:
        def enough() -> bool:
            assert self.fact("JobState") in ("PENDING", "CONFIGURING", "RUNNING"), self.log.read_text()
            return self.rows() >= count

        wait_for(f"{count} rounds", enough)

    def await_state(self, *states: str) -> str:
        state: str = wait_for(f"job {self.number} to be {states}", lambda: (s := self.fact("JobState")) in states and s)
        return state

    def await_requeue(self) -> None:
        """Until it is back in the queue, and nothing of its first life is left: a daemon that is still ending the old
        step would end the new one, since both have the same number.
        """
        wait_for(
            "the job to be queued again", lambda: self.fact("Restarts") == "1" and self.fact("JobState") == "PENDING"
        )
        wait_for("its processes to be gone", lambda: not self._processes() and not self._daemons())

    def start_now(self) -> None:
        """SLURM holds a job that was queued again for two minutes, which is cut short."""
        self.cluster.call("scontrol", "update", f"JobId={self.number}", "StartTime=now")

    def result(self) -> dict[str, Any]:
        assert self.await_state("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED") == "COMPLETED", self.log.read_text()
        assert "Traceback" not in self.log.read_text()
        return results(self.run_dir)

    def pid_of(self, rank: int) -> int:
        """The process of a rank."""
        for path in self._processes(f"SLURM_PROCID={rank}"):
            command = _read(path / "cmdline")
            if b"pfl-fit" in command and b"srun" not in command:
                return int(path.name)
        raise LookupError(f"rank {rank} of job {self.number} is not here")

    def _daemons(self) -> list[Path]:
        """What SLURM has set up to watch over the job's steps on each node."""
        title = f"slurmstepd: [{self.number}.".encode()
        return [path for path in Path("/proc").glob("[0-9]*") if _read(path / "cmdline").startswith(title)]

    def _processes(self, *facts: str) -> list[Path]:
        """The job's processes, found by their environment."""
        facts = (*facts, f"SLURM_JOB_ID={self.number}", f"SLURM_CONF={self.cluster.env['SLURM_CONF']}")
        wanted = {fact.encode() for fact in facts}
        return [p for p in Path("/proc").glob("[0-9]*") if wanted <= set(_read(p / "environ").split(b"\0"))]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


def results(run_dir: Path) -> dict[str, Any]:
    """What must be the same however often a run was disturbed."""
    summary = json.loads((run_dir / "summary.json").read_text())
    rounds = [line.split(",")[0] for line in (run_dir / "metrics.csv").read_text().splitlines()]
    keys = ("model_sha256", "clients_sha256", "last", "best", "best_per_client_visits")
    curve = EventAccumulator(str(run_dir)).Reload().Scalars("accuracy/before")
    steps = [(event.step, event.value) for event in curve]
    return {key: summary[key] for key in keys} | {"rounds": rounds, "curve": steps}


def _free_ports() -> int:
    """The first of a few ports that nobody listens on, away from those that Lightning uses."""
    for base in range(26800, 29800, 100):
        try:
            for port in range(base, base + 3):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return base
        except OSError:
            continue
    raise OSError("no free ports")
