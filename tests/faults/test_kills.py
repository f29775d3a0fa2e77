"""A few of the kills that `tools/faults/kill_runs.py` does by the dozen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools/faults/kill_runs.py"


def test_killed_runs_end_like_undisturbed_ones():
    done = subprocess.run([sys.executable, TOOL, "--runs", "5", "--seed", "1"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "different from the undisturbed run: 0" in done.stdout
    assert "temporary or unneeded files left over: 0" in done.stdout
