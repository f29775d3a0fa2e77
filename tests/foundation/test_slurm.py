"""When a job is requeued, for every state that SLURM may report. tests/slurm uses a real SLURM."""

from __future__ import annotations

import subprocess
from signal import SIGINT, SIGTERM, SIGUSR1

import pytest

from pfl_lightning.foundation import slurm

RUNS = "JobId=7 JobState=RUNNING Reason=None PreemptTime=None"
IN_GRACE_TIME = "JobId=7 JobState=RUNNING Reason=None PreemptTime=2026-01-31T09:00:00"
CANCELLED = "JobId=7 JobState=COMPLETING Reason=None PreemptTime=None"
CANCELLED_IN_GRACE_TIME = "JobId=7 JobState=COMPLETING Reason=None PreemptTime=2026-01-31T09:00:00"
OVER_TIME = "JobId=7 JobState=COMPLETING Reason=TimeLimit PreemptTime=None"
SILENT = ""


@pytest.fixture
def asked(monkeypatch):
    """A SLURM that gives the answer a test wants and notes the requests."""
    asked: list[tuple[str, ...]] = []

    def answer(*words: str) -> str:
        asked.append(words)
        if words[0] == "show" and not asked_facts[0]:
            raise FileNotFoundError("scontrol")
        return asked_facts[0]

    asked_facts = [RUNS]
    monkeypatch.setattr(slurm, "_scontrol", answer)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    return asked, asked_facts


@pytest.mark.parametrize(
    ("facts", "signals", "rounds", "wanted"),
    [
        (RUNS, [SIGUSR1], 3, True),
        (RUNS, [SIGTERM], 3, False),
        (RUNS, [SIGUSR1, SIGINT], 3, False),
        (IN_GRACE_TIME, [SIGTERM], 3, True),
        (IN_GRACE_TIME, [SIGTERM], 0, True),
        (CANCELLED, [SIGTERM], 3, False),
        (CANCELLED, [SIGUSR1, SIGTERM], 3, False),
        (CANCELLED_IN_GRACE_TIME, [SIGTERM], 3, False),
        (OVER_TIME, [SIGUSR1, SIGTERM], 3, True),
        (OVER_TIME, [SIGTERM], 3, True),
        (SILENT, [SIGUSR1], 3, True),
        (SILENT, [SIGTERM], 3, False),
    ],
)
def test_a_time_limit_and_preemption_are_requeued_and_a_cancelled_job_never(facts, signals, rounds, wanted, asked):
    calls, said = asked
    said[0] = facts
    assert slurm.requeue(signals, rounds) is wanted
    assert (("requeue", "7") in calls) is wanted


@pytest.mark.parametrize("facts", [RUNS, OVER_TIME, SILENT])
def test_a_job_without_a_finished_round_is_not_requeued(facts, asked, capsys):
    calls, said = asked
    said[0] = facts
    assert slurm.requeue([SIGUSR1], 0) is False
    assert ("requeue", "7") not in calls
    assert capsys.readouterr().err == (
        "pfl-fit: warning: job 7 is not requeued: no round was finished within its time limit; use a longer --time\n"
    )


def test_a_site_that_does_not_requeue_gets_a_warning(asked, monkeypatch, capsys):
    def refuse(*words: str) -> str:
        if words[0] == "requeue":
            raise subprocess.CalledProcessError(1, "scontrol", stderr="Requested operation is presently disabled\n")
        return RUNS

    monkeypatch.setattr(slurm, "_scontrol", refuse)
    assert slurm.requeue([SIGUSR1], 3) is False
    assert "SLURM does not requeue job 7: Requested operation is presently disabled\n" in capsys.readouterr().err


def test_outside_slurm_nothing_is_asked(asked, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID")
    assert slurm.requeue([SIGUSR1], 3) is False
    assert asked[0] == []
