"""Asking SLURM to start a job again after it was told to stop."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence

PATIENCE_SECONDS = 600.0
"""How long a job that is to be started again waits to be ended."""


def requeue(signals: Sequence[int], rounds: int) -> bool:
    """Put this SLURM job back into the queue if that is what the signals mean; whether it was.

    SIGUSR1 announces the time limit (`--signal=USR1@90`). SIGTERM may be preemption, after which a job that ends on
    its own counts as done and is not started again; or `scancel`, after which nothing may start it again.

    Args:
        signals: all that any rank was sent.
        rounds: whole rounds since the job was started. A time limit that is too short for one is so for ever.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or signal.SIGINT in signals:
        return False
    facts = _facts(job)
    late = "Reason=TimeLimit" in facts  # it is being ended, with the few seconds of KillWait left
    if facts and "JobState=RUNNING" not in facts and not late:  # cancelled; SLURM would bring it back if we asked
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
    """What SLURM knows of a job: one in its grace time still runs and has a time of preemption, a cancelled one ends.

    Empty where it does not answer.
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
