"""The origin of a result: package version and git commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pfl_lightning


def origin() -> dict[str, str | None]:
    """Entries for summary.json. The commit is None outside a checkout, and ends in `+changes` if files differ."""
    return {"version": pfl_lightning.__version__, "git_commit": _git_commit(Path(pfl_lightning.__file__).parent)}


def _git_commit(place: Path) -> str | None:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=place, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if not git("ls-files", "__init__.py"):  # installed inside the tree of another project
            return None
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
