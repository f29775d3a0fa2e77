"""Run cells, several at a time, until all have ended or someone asks to stop."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pfl_lightning.compare.children import Child
from pfl_lightning.compare.estimate import Work, rounds_done
from pfl_lightning.compare.plan import Cell
from pfl_lightning.compare.run_folder import examine, in_use, new_directory
from pfl_lightning.foundation.signals import StopSignals

PAUSE_SECONDS = 0.2
GRACE_SECONDS = 120.0
"""Time that runs have to save their state after a request to stop."""


class Display(Protocol):
    """Shows how the work goes on."""

    def update(self, work: Sequence[Work], waiting: int) -> None:
        """Show the running cells. Called several times a second."""
        ...

    def ended(self, cell: Cell, problem: str | None) -> None:
        """A cell has ended."""
        ...


class Stopped(Exception):
    """Someone asked to stop. All children have ended."""


@dataclass
class Running:
    """A cell at work. Without a child, another process works on it."""

    cell: Cell
    run_dir: Path
    child: Child | None
    began: float
    rounds_before: int


@dataclass(frozen=True)
class End:
    """How a cell ended: well, with a problem, or given up by another process and to be taken over."""

    problem: str | None = None
    again: bool = False
    continue_in: Path | None = None


class Runner:
    """Runs cells as children, one in each slot.

    Args:
        start: starts a cell in a run directory and a slot.
        slots: number of cells at a time.
        folder: of the run directories.
        stop: requests to stop.
        display: told about everything.
    """

    def __init__(
        self,
        start: Callable[[Cell, Path, int], Child],
        slots: int,
        folder: Path,
        stop: StopSignals,
        display: Display,
    ) -> None:
        self._start, self._slots, self._folder, self._stop, self._display = start, slots, folder, stop, display

    def run(self, cells: Sequence[tuple[Cell, Path | None]]) -> dict[str, str]:
        """Run cells, each with the directory to continue in or None. Returns identity → problem of those that failed.

        Raises `Stopped` after a request to stop, and ends all children on any exception.
        """
        queue = deque(cells)
        running: dict[int, Running] = {}
        failed: dict[str, str] = {}
        try:
            while queue or running:
                for slot in range(self._slots):
                    if slot not in running and queue:
                        running[slot] = self._begin(*queue.popleft(), slot)
                self._display.update([_work(one) for one in running.values()], len(queue))
                if self._stop.wait(PAUSE_SECONDS):
                    raise Stopped
                for slot, one in list(running.items()):
                    if (end := self._ended(one)) is None:
                        continue
                    del running[slot]
                    if end.again:
                        queue.appendleft((one.cell, end.continue_in))
                        continue
                    self._display.ended(one.cell, end.problem)
                    failed |= {one.cell.id: end.problem} if end.problem else {}
        finally:
            self._end([one.child for one in running.values() if one.child])
        return failed

    def _begin(self, cell: Cell, run_dir: Path | None, slot: int) -> Running:
        busy = run_dir is not None and in_use(run_dir)
        path = run_dir or new_directory(cell, self._folder)
        child = None if busy else self._start(cell, path, slot)
        return Running(cell, path, child, time.monotonic(), rounds_done(path))

    def _ended(self, one: Running) -> End | None:
        """How a cell ended. None while it runs."""
        if one.child is None:
            if in_use(one.run_dir):
                return None
            found = examine(one.cell, one.run_dir)
            if found.state == "finished":
                return End()
            return End(again=True, continue_in=one.run_dir if found.state == "resumable" else None)
        code = one.child.poll()
        if code is None:
            return None
        if code:
            return End(f"exit code {code}: {one.child.complaint()}")
        found = examine(one.cell, one.run_dir)
        return End() if found.state == "finished" else End(f"{found.reason or 'it left no results'}: {one.run_dir}")

    def _end(self, children: Sequence[Child]) -> None:
        """Let children save and end. A second Ctrl-C or too much time kills them."""
        try:
            for child in children:
                child.interrupt()
            end = time.monotonic() + GRACE_SECONDS
            while any(child.poll() is None for child in children) and time.monotonic() < end:
                time.sleep(PAUSE_SECONDS / 4)
        finally:
            for child in children:
                child.kill()


def _work(one: Running) -> Work:
    return Work(one.cell, rounds_done(one.run_dir), one.rounds_before, time.monotonic() - one.began)
