"""Turn the hundreds of lines of `pip install` into one that moves: pip install … | python tools/show_progress.py

Without a terminal it prints a line now and then. Errors of pip go to another stream and are shown as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TextIO

STEPS = ("Collecting", "Downloading", "Building", "Installing")
CLEAR = "\r\033[K"


def show_progress(lines: Iterable[str], out: TextIO) -> None:
    """Count the packages that pip collects, and name its present step."""
    count, terminal = 0, out.isatty()
    for line in lines:
        words = line.split()
        if not words or words[0] not in STEPS:
            continue
        first = words[0] == "Collecting"
        count += first
        if terminal:
            out.write(f"{CLEAR}  {count} packages, {' '.join(words[:2]).lower()[:70]}")
        elif words[0] == "Installing" or (first and count % 40 == 1):
            out.write(f"  {count} packages, {words[0].lower()}\n")
        out.flush()
    out.write(CLEAR if terminal else "")


if __name__ == "__main__":
    show_progress(sys.stdin, sys.stdout)
