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


def requeue(signals: Sequence[int]) -> bool:
    """Put this SLURM job back into the queue if that is what the signals mean; whether it was.

    SIGUSR1 announces the time limit (`--signal=USR1@90`). SIGTERM may be preemption, after which a job that ends on
    its own counts as done and is not started again; or `scancel`, after which nothing may start it again.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or signal.SIGINT in signals or not (signal.SIGUSR1 in signals or _is_preempted(job)):
        return False
    try:
        _scontrol("requeue", job)
    except (OSError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip()
        print(f"pfl-fit: warning: SLURM does not requeue job {job}: {reason}", file=sys.stderr, flush=True)
        return False
    return True


def _is_preempted(job: str) -> bool:
    """Whether the job is in its grace time: it still runs, and has a time of preemption. A cancelled one has none."""
    try:
        facts = _scontrol("show", "job", "-o", job)
    except (OSError, subprocess.SubprocessError):
        return False
    return "JobState=RUNNING" in facts and re.search(r"\bPreemptTime=\d", facts) is not None


def _scontrol(*words: str) -> str:
    done = subprocess.run(["scontrol", *words], capture_output=True, text=True, check=True, timeout=30)
    return done.stdout
