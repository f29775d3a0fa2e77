"""The first seconds of a command: one line on a terminal that names the slow step."""

from __future__ import annotations

import os
import sys
from typing import TextIO


class Status:
    """A line that the next output overwrites. Silent unless a person watches on a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty() and os.environ.get("TERM") != "dumb" and is_first_process()

    def say(self, text: str) -> None:
        """Replace the line. The cursor returns to its start, so that other output overwrites it."""
        self._write(f"\r\x1b[K{text} ...\r")

    def clear(self) -> None:
        """Remove the line."""
        self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        if self._shown:
            self._stream.write(text)
            self._stream.flush()


def is_first_process() -> bool:
    """Whether this is rank 0, as far as SLURM and torchrun say. Ranks forked later do not count."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "SLURM_PROCID"))
