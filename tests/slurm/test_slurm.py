"""Jobs on a real SLURM of two nodes: whatever happens to them, they end with the hashes of a run on one process.

`make test-slurm` runs them; they need root, and Debian's packages or the network to install them.
"""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from pfl_lightning.checkpoint.manifest import list_rounds
from pfl_lightning.cli.fit import run
from tests.slurm.cluster import Cluster, Job, results, wait_for

pytestmark = pytest.mark.skipif("PFL_TEST_SLURM" not in os.environ, reason="needs root and SLURM: make test-slurm")

JOB = [
    "--algorithm", "tests.slurm.patient.Patient", "--algorithm.quantile", "0.9", "--data.num_clients", "12",
    "--data.partition", "IID", "--task.net", "MLP", "--task.net.hidden", "[16]", "--loop.rounds", "40",
    "--loop.participation", "0.5", "--loop.eval_every", "20", "--loop.batch_size", "64",
    "--checkpoint.every_rounds", "4",
]  # fmt: skip


@pytest.fixture(scope="module")
def cluster():
    if os.geteuid():
        pytest.skip("SLURM needs root")
    cluster = Cluster()
    if cluster.problem:
        cluster.stop()
        pytest.skip(f"no SLURM here: {cluster.problem}")
    yield cluster
    cluster.stop()


@pytest.fixture(autouse=True)
def _slow(cluster):
    """Jobs take their time until a test lets them hurry."""
    cluster.slow.touch()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The results of a run on one process that nobody disturbs."""
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    assert run([*JOB, "--fabric.devices", "1", "--run_dir", str(run_dir)]) == 0
    return results(run_dir)


def continued(run_dir: Path) -> dict[str, Any]:
    """The results of a run of two nodes that a person continues in one process, without SLURM."""
    assert run([*JOB, "--fabric.devices", "1", "--resume", "auto", "--run_dir", str(run_dir)]) == 0
    return results(run_dir)


def test_two_nodes_give_the_bits_of_one_process(cluster, expected, tmp_path):
    job = cluster.submit(tmp_path / "run", JOB)
    cluster.hurry()
    assert job.result() == expected
    assert "2 on cpu" in job.log.read_text()


def test_tasks_without_a_number_per_node_get_one_line(cluster, tmp_path):
    log, command = tmp_path / "log", " ".join(["pfl-fit", *map(shlex.quote, JOB), "--run_dir", str(tmp_path / "run")])
    words = ["sbatch", "--parsable", "--nodes=2", "--ntasks=2", f"--output={log}"]
    number = cluster.call(*words, f"--wrap=exec srun --kill-on-bad-exit=1 {command}")
    job = Job(cluster, number, tmp_path / "run", log)
    assert job.await_state("FAILED", "COMPLETED", "CANCELLED") == "FAILED"
    lines = [line for line in log.read_text().splitlines() if line.startswith("pfl-fit: error: ")]
    assert len(lines) == 1
    assert "SLURM has started 2 tasks on 2 nodes without --ntasks-per-node" in lines[0]
    assert not (tmp_path / "run").exists()


def test_the_time_limit_is_announced_and_the_job_goes_on_later(cluster, expected, tmp_path):
    job = cluster.submit(tmp_path / "run", JOB, "--time=60")
    job.await_rows(5)
    cluster.call("scontrol", "update", f"JobId={job.number}", "TimeLimit=1")  # within the 90 s of --signal=USR1@90
    job.await_requeue()
    job.start_now()
    assert list_rounds(tmp_path / "run/checkpoints")[0] == job.rows(), "no whole round is lost"
    cluster.call("scontrol", "update", f"JobId={job.number}", "TimeLimit=60")
    cluster.hurry()
    assert job.result() == expected
    assert "continued after round" in job.log.read_text()


def test_a_preempted_job_goes_on_later(cluster, expected, tmp_path):
    job = cluster.submit(tmp_path / "run", JOB)
    job.await_rows(5)
    urgent = cluster.call("sbatch", "--parsable", "--partition=urgent", "--nodes=2", "--exclusive", "--wrap=true")
    job.await_requeue()
    job.start_now()
    cluster.hurry()
    assert list_rounds(tmp_path / "run/checkpoints")[0] == job.rows(), "no whole round is lost"
    assert job.result() == expected
    wait_for("the urgent job", lambda: "COMPLETED" in cluster.call("scontrol", "show", "job", urgent))


def test_a_killed_rank_ends_the_job_at_once_and_it_can_be_continued(cluster, expected, tmp_path):
    job = cluster.submit(tmp_path / "run", JOB)
    job.await_rows(5)
    os.kill(job.pid_of(1), signal.SIGKILL)
    # this waits less long than fabric.timeout, after which ranks would give up by themselves
    assert job.await_state("FAILED", "COMPLETED") == "FAILED"
    assert continued(tmp_path / "run") == expected


def test_a_job_that_loses_a_node_goes_on_when_there_is_one(cluster, expected, tmp_path):
    job = cluster.submit(tmp_path / "run", JOB)
    job.await_rows(5)
    cluster.call("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=test")
    job.await_requeue()
    # SLURM does not wait for a lost node: its daemon may still be busy with ending the job, and would end it once more
    cluster.restart("node2")
    job.start_now()
    cluster.hurry()
    assert job.result() == expected


def test_a_cancelled_job_is_not_queued_again_but_can_be_continued(cluster, expected, tmp_path):
    job = cluster.submit(tmp_path / "run", JOB)
    job.await_rows(5)
    cluster.call("scancel", job.number)
    assert job.await_state("CANCELLED", "PENDING") == "CANCELLED"
    assert job.fact("Restarts") == "0"
    assert list_rounds(tmp_path / "run/checkpoints")[0] == job.rows(), "no whole round is lost"
    assert continued(tmp_path / "run") == expected


def test_a_stuck_rank_is_named_with_its_node(cluster, tmp_path):
    job = cluster.submit(tmp_path / "run", [*JOB, "--fabric.timeout", "5"])
    job.await_rows(5)
    os.kill(job.pid_of(1), signal.SIGSTOP)
    cluster.hurry()
    assert job.await_state("FAILED", "COMPLETED") == "FAILED"
    assert "pfl-fit: error: rank 1 on node2 did not answer in round" in job.log.read_text()
