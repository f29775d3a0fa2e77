"""Asking SLURM to requeue a job before it stops."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence

PATIENCE_SECONDS = 600.0
"""How long a requeued job waits until SLURM ends it."""


def requeue(signals: Sequence[int], rounds: int) -> bool:
    """Put this SLURM job back into the queue if the signals ask for it. Returns whether that was done.

    SIGUSR1 announces the time limit (`--signal=USR1@90`). SIGTERM may mean preemption: a job that then ends by itself
    counts as completed and is not started again. It may also mean `scancel`: then the job must not start again.

    Args:
        signals: the signals that any rank has received.
        rounds: whole rounds since the job was started. With none, the time limit is too short for even one round, and
            the job would be requeued for ever.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or signal.SIGINT in signals:
        return False
    facts = _facts(job)
    late = "Reason=TimeLimit" in facts  # SLURM is ending it. A few seconds (KillWait) are left
    if facts and "JobState=RUNNING" not in facts and not late:  # cancelled: a request would start it again
        return False
    if not re.search(r"\bPreemptTime=\d", facts):
        if signal.SIGUSR1 not in signals and not late:
            return False
        if rounds == 0:
            _warn(f"job {job} is not requeued: no round was finished within its time limit; use a longer --time")
            return False
    try:
        _scontrol("requeue", job)
    except (OSError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip()
        _warn(f"SLURM does not requeue job {job}: {reason}")
        return False
    return True


def _facts(job: str) -> str:
    """The state of a job as `scontrol show job` prints it, or an empty text if SLURM does not answer.

    A preempted job is still running during its grace time and has a PreemptTime. A cancelled job is completing.
    """
    try:
        return _scontrol("show", "job", "-o", job)
    except (OSError, subprocess.SubprocessError):
        return ""


def _warn(text: str) -> None:
    print(f"pfl-fit: warning: {text}", file=sys.stderr, flush=True)


def _scontrol(*words: str) -> str:
    done = subprocess.run(["scontrol", *words], capture_output=True, text=True, check=True, timeout=30)
    return done.stdout
