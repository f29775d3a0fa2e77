"""How the work goes on: a live display on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from pfl_lightning.compare.estimate import Work, duration, paces, remaining
from pfl_lightning.compare.plan import Cell

LINE_SECONDS = 60.0
"""Time between two lines about running cells where there is no terminal."""


class Quiet:
    """Shows nothing."""

    def __init__(self, total: int = 0, slots: int = 1, timed: Sequence[tuple[Cell, int, float]] = ()) -> None:
        self.total, self.slots = total, slots
        self.done = 0
        self._timed = list(timed)
        self._work: dict[str, Work] = {}
        self._waiting: list[Cell] = []

    def expect(self, cells: Sequence[Cell]) -> None:
        """The cells about to run. Called before they do."""
        self._waiting += cells
        self.total += len(cells)

    def update(self, work: Sequence[Work], waiting: int) -> None:
        """Note the running cells."""
        self._work = {one.cell.id: one for one in work}
        self._waiting = [cell for cell in self._waiting if cell.id not in self._work]

    def ended(self, cell: Cell, problem: str | None) -> None:
        """Note that a cell has ended."""
        self.done += 1
        if (one := self._work.pop(cell.id, None)) and not problem:
            self._timed.append((cell, cell.rounds - one.rounds_before, one.seconds))

    def close(self) -> None:
        """Leave the terminal as it was."""

    @property
    def seconds_left(self) -> float | None:
        """Estimate from all cells that were timed, running ones included."""
        running = [(one.cell, one.rounds - one.rounds_before, one.seconds) for one in self._work.values()]
        left = [(one.cell, one.rounds) for one in self._work.values()] + [(cell, 0) for cell in self._waiting]
        return remaining(left, paces([*self._timed, *running]), self.slots)

    @property
    def left_text(self) -> str:
        """The estimate in words."""
        left = self.seconds_left
        return "time left: not known yet" if left is None else f"about {duration(left)} left"


class Lines(Quiet):
    """Plain lines: one per cell that ends, and one a minute."""

    def __init__(self, console: Console, slots: int, timed: Sequence[tuple[Cell, int, float]] = ()) -> None:
        super().__init__(0, slots, timed)
        self._console = console
        self._next = time.monotonic() + LINE_SECONDS

    def update(self, work: Sequence[Work], waiting: int) -> None:
        """A line, if the last one is old."""
        super().update(work, waiting)
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LINE_SECONDS
        running = "; ".join(f"{one.cell.label}: round {one.rounds} of {one.cell.rounds}" for one in work)
        self._say(f"[{self.done}/{self.total}] {running}; {self.left_text}")

    def ended(self, cell: Cell, problem: str | None) -> None:
        """A line for each cell."""
        super().ended(cell, problem)
        outcome = f"failed: {problem}" if problem else "finished"
        self._say(f"[{self.done}/{self.total}] {cell.label}: {outcome}; {self.left_text}")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class Live(Quiet):
    """A bar for the whole comparison, and one for each running cell."""

    def __init__(self, console: Console, slots: int, timed: Sequence[tuple[Cell, int, float]] = ()) -> None:
        super().__init__(0, slots, timed)
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            expand=True,
        )
        self._all = self._progress.add_task("cells", total=None, note="")
        self._bars: dict[str, TaskID] = {}
        self._progress.start()

    def update(self, work: Sequence[Work], waiting: int) -> None:
        """Move the bars."""
        super().update(work, waiting)
        for one in work:
            if one.cell.id not in self._bars:
                bar = self._progress.add_task(one.cell.label, total=one.cell.rounds, note="rounds")
                self._bars[one.cell.id] = bar
            self._progress.update(self._bars[one.cell.id], completed=one.rounds)
        self._progress.update(self._all, completed=self.done, total=self.total, note=self.left_text)

    def ended(self, cell: Cell, problem: str | None) -> None:
        """Remove the cell's bar and say how it ended."""
        super().ended(cell, problem)
        if (bar := self._bars.pop(cell.id, None)) is not None:
            self._progress.remove_task(bar)
        if problem:
            self._console.print(f"{cell.label}: failed: {problem}", markup=False, highlight=False)

    def close(self) -> None:
        """Stop the display."""
        self._progress.stop()


def make_display(
    console: Console, quiet: bool, slots: int, timed: Sequence[tuple[Cell, int, float]], env: Mapping[str, str]
) -> Quiet:
    """The display that fits the terminal."""
    if quiet:
        return Quiet(0, slots, timed)
    live = console.is_terminal and env.get("TERM") != "dumb"
    return Live(console, slots, timed) if live else Lines(console, slots, timed)
